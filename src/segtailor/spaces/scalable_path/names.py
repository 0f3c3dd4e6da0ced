"""Key names of published LPS-Net checkpoints, training and inference form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from segtailor.spaces.scalable_path.architecture import STAGES, ScalablePathArchitecture

if TYPE_CHECKING:
    from torch import Tensor

    from segtailor.nets.network import Network
    from segtailor.nets.weights import NameMap

EPS = 1e-5  # of the batch norms that an inference-form checkpoint is unfolded into


def published_names(network: Network, arch: ScalablePathArchitecture) -> NameMap:
    """Return how the reference project names the weights of this network."""
    from segtailor.nets.weights import NameMap, key_pairs

    own = network.state_dict()
    names: dict[str, tuple[str, ...]] = {}
    for path, prefix in enumerate(_path_names(len(arch.resolution))):
        for stage in range(STAGES):
            for block in range(arch.depth[stage]):
                node = f"nodes.path{path}_stage{stage}_block{block}"
                goal = f"{prefix}.stages.{stage}.{block}"
                names |= key_pairs(node, goal, [("conv", "0"), ("norm", "1")], own)
    names |= key_pairs("nodes.head", "head", [("conv1", "")], own)
    norms = {published: own[key] for key, (published,) in names.items() if published.endswith(".1.bias")}
    return NameMap(names=names, convert=lambda state: _unfold(state, norms))


def _path_names(paths: int) -> list[str]:
    if paths == 1:
        return ["net"]
    if paths == 2:
        return ["netH", "netL"]
    return [f"net{path + 1}" for path in range(paths)]


def _unfold(state: Mapping[str, Tensor], norms: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Turn an inference-form checkpoint (convolutions with bias) into the training form, exactly equal in effect.

    `norms` are the shifts of the norms by published key. A file with any of them has the training form already.
    """
    import torch

    from segtailor.nets.weights import check_entry

    biases = {published.removesuffix("1.bias") + "0.bias": target for published, target in norms.items()}
    if not any(key in state for key in biases) or any(key in state for key in norms):
        return state
    result = dict(state)
    for key, target in biases.items():
        check_entry(state, key, target)
        bias = result.pop(key).float()  # a half cannot hold the variance below
        norm = key.removesuffix("0.bias") + "1."
        result[norm + "weight"] = torch.ones_like(bias)
        result[norm + "bias"] = bias
        result[norm + "running_mean"] = torch.zeros_like(bias)
        result[norm + "running_var"] = torch.full_like(bias, 1 - EPS)
    return result

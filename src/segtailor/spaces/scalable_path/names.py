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
    return NameMap(names=names, convert=_unfold)


def _path_names(paths: int) -> list[str]:
    if paths == 1:
        return ["net"]
    if paths == 2:
        return ["netH", "netL"]
    return [f"net{path + 1}" for path in range(paths)]


def _unfold(state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Turn an inference-form checkpoint (convolutions with bias) into the training form, exactly equal in effect."""
    import torch

    result = dict(state)
    for key in state:
        if not key.endswith(".0.bias"):
            continue
        bias = result.pop(key)
        norm = key.removesuffix("0.bias") + "1."
        result[norm + "weight"] = torch.ones_like(bias)
        result[norm + "bias"] = bias
        result[norm + "running_mean"] = torch.zeros_like(bias)
        result[norm + "running_var"] = torch.full_like(bias, 1 - EPS)
    return result

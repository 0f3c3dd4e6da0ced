"""Key names of published FasterSeg checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from segtailor.spaces.multi_resolution.architecture import MultiResolutionArchitecture
from segtailor.spaces.multi_resolution.layers import cell_name

if TYPE_CHECKING:
    from torch import Tensor

    from segtailor.nets.network import Network
    from segtailor.nets.weights import NameMap

CELL = [
    (f"{stack}{ours}{number}", f"{theirs}{number}")
    for stack in ("", "stack.")
    for ours, theirs in (("conv", "conv"), ("norm", "bn"))
    for number in (1, 2)
]
UNIT = [("conv1", "conv.0"), ("norm1", "conv.1")]
HEAD = [("conv1", "conv_3x3.conv"), ("norm1", "conv_3x3.bn"), ("conv2", "conv_1x1")]
ATTENTION = [("conv1", "1.conv"), ("conv2", "2.conv")]
ATTENTION_PREFIX = "ffm.channel_attention"
TRAIN_ONLY = frozenset(
    f"heads{rate}.{layer}"
    for rate in (16, 32)
    for layer in (
        "conv_3x3.conv.weight",
        *(f"conv_3x3.bn.{kind}" for kind in ("weight", "bias", "running_mean", "running_var")),
        "conv_3x3.bn.num_batches_tracked",
        "conv_1x1.weight",
        "conv_1x1.bias",
    )
) | {f"{ATTENTION_PREFIX}.{number}.conv.weight" for number in (1, 2)}


def published_names(network: Network, arch: MultiResolutionArchitecture) -> NameMap:
    """Return how the reference project names the weights of this network."""
    from segtailor.nets.weights import NameMap, key_pairs

    own = network.state_dict()
    names: dict[str, tuple[str, ...]] = {}
    for node, goal, layers in _nodes(arch):
        for key, found in key_pairs(f"nodes.{node}", goal, layers, own).items():
            names[key] = (*names.get(key, ()), *found)  # a shared cell has a name per branch: the later wins
    return NameMap(
        names=names,
        droppable=TRAIN_ONLY.__contains__,
        convert=lambda state: _with_attention(state, names, own),
    )


def _nodes(arch: MultiResolutionArchitecture) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """List our nodes with their published prefix and layers."""
    rows = [("stem0", "stem.0", UNIT), ("stem1", "stem.1", CELL), ("stem2", "stem.2", CELL)]
    for number, branch in enumerate(arch.branches):
        for position in range(len(branch)):
            goal = f"cells.{position}-{number}._op._op"
            rows.append((cell_name(arch, number, position), goal, CELL))
    for ours, theirs in (("arm", "arms"), ("refine", "refines")):
        rows += [(f"{ours}32_{step}", f"{theirs}32.{step}", UNIT) for step in (0, 1)]
        rows.append((f"{ours}16_0", f"{theirs}16", UNIT))
    rows.append(("fusion", "ffm.conv_1x1", [("conv1", "conv"), ("norm1", "bn")]))
    rows.append(("fusion_attention", ATTENTION_PREFIX, ATTENTION))
    rows += [(f"head{rate}", f"heads{rate}", HEAD) for rate in (8, 16, 32)]
    return rows


def _with_attention(
    state: Mapping[str, Tensor], names: Mapping[str, tuple[str, ...]], own: Mapping[str, Tensor]
) -> Mapping[str, Tensor]:
    """Let a checkpoint lack the attention that nothing reads: keep our values then."""
    missing = {
        published: own[key]
        for key, aliases in names.items()
        for published in aliases
        if published.startswith(ATTENTION_PREFIX) and published not in state
    }
    return {**state, **missing}

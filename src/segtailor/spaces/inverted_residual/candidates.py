"""The 13 candidates of every block, in the order of the paper's appendix B."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from segtailor.core.plan import Operator
from segtailor.ops import Conv, FactorisedReduction, Identity, InvertedBottleneck
from segtailor.spaces.inverted_residual.frames import BlockFrame

Candidate: TypeAlias = Literal[
    "k3_d1_e1_g2", "k3_d1_e1_g1", "k3_d1_e3_g1", "k3_d1_e6_g1",
    "k3_d2_e1_g2", "k3_d2_e1_g1", "k3_d2_e3_g1", "k3_d2_e6_g1",
    "k5_d1_e1_g2", "k5_d1_e1_g1", "k5_d1_e3_g1", "k5_d1_e6_g1",
    "skip",
]  # fmt: skip
CANDIDATES: tuple[Candidate, ...] = get_args(Candidate)  # kernel, dilation, expansion, groups


def operator(candidate: Candidate, block: BlockFrame) -> Operator:
    """Return what a candidate computes in a block, the residual sum included."""
    if candidate == "skip":
        return _skip(block)
    kernel, dilation, expansion, groups = (int(part[1:]) for part in candidate.split("_"))
    return InvertedBottleneck(kernel=kernel, dilation=dilation, expansion=expansion, groups=groups)


def _skip(block: BlockFrame) -> Operator:
    """Pass the input on; where shapes change, by the least that changes them."""
    if block.stride != 1:
        return FactorisedReduction(first=True, norm="each")
    if block.inputs != block.outputs:
        return Conv(kernel=1, first=True)
    return Identity()

"""The ten operators of a cell and the five of the aggregation cell, by name (AutoRTNet section 3.1).

All are pre-activation units as in DARTS and SNAS: ReLU, convolution, norm; a stride sits on the first one.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from segtailor.core.plan import Operator
from segtailor.ops import Conv, FactorisedReduction, Identity, MaxPool, Separable, Zero

CellOp: TypeAlias = Literal[
    "zero",
    "skip",
    "maxpool3",
    "conv3",
    "conv3_x2",
    "sep3",
    "sep3_x2",
    "dsep3_d2",
    "dsep3_d4",
    "dsep3_d2_x2",
]
AggregationOp: TypeAlias = Literal["conv1_x2", "conv3_x2", "dsep3_d2_x2", "dsep3_d4_x2", "dsep3_d8_x2"]
CELL_OPS: tuple[CellOp, ...] = get_args(CellOp)
AGGREGATION_OPS: tuple[AggregationOp, ...] = get_args(AggregationOp)

_OPERATORS: dict[CellOp | AggregationOp, Operator] = {
    "zero": Zero(),
    "skip": Identity(),
    "maxpool3": MaxPool(),
    "conv3": Conv(first=True),
    "conv3_x2": Conv(repeats=2, first=True),
    "sep3": Separable(first=True),
    "sep3_x2": Separable(repeats=2, first=True),
    "dsep3_d2": Separable(dilation=2, first=True),
    "dsep3_d4": Separable(dilation=4, first=True),
    "dsep3_d2_x2": Separable(dilation=2, repeats=2, first=True),
    "conv1_x2": Conv(kernel=1, repeats=2, first=True),
    "dsep3_d4_x2": Separable(dilation=4, repeats=2, first=True),
    "dsep3_d8_x2": Separable(dilation=8, repeats=2, first=True),
}


def operator(name: CellOp | AggregationOp, *, stride: int) -> Operator:
    """Return the operator of an edge; a `skip` that must halve the map is a factorised reduction."""
    return FactorisedReduction() if name == "skip" and stride == 2 else _OPERATORS[name]

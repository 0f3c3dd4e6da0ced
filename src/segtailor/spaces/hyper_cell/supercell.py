"""One cell of the supernet: every operator on every edge, and what the cell costs in expectation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from segtailor.core.plan import OpCall, Operator, Shape
from segtailor.nets.fused_units import FusedUnits
from segtailor.nets.mixed import Mixed, Price, mix, per_batch
from segtailor.nets.relax import Live, Weights
from segtailor.nets.supernet import SupernetSettings, freeze_affine
from segtailor.ops import Concat, FactorisedReduction, Sum, Zero
from segtailor.spaces.hyper_cell.architecture import EDGES
from segtailor.spaces.hyper_cell.layers import ADAPT
from segtailor.spaces.hyper_cell.operators import CELL_OPS, AggregationOp, CellOp, operator

ZERO = CELL_OPS.index("zero")


class CellFrame(NamedTuple):
    """What is fixed about a cell; `keys` are the decisions of its edges."""

    older: Shape
    newer: Shape
    width: int
    stride: int
    finer: bool  # the older input is a scale finer than the newer
    keys: Sequence[str]

    @property
    def inner(self) -> Shape:
        """The shape of a node."""
        return self.newer.halved(self.width, self.stride)

    @property
    def output(self) -> Shape:
        """The shape of the cell's output."""
        return self.inner._replace(channels=2 * self.width)


class SuperCell(nn.Module):
    """Two adapted inputs, five mixed edges, two nodes that are joined."""

    def __init__(self, frame: CellFrame, settings: SupernetSettings) -> None:
        super().__init__()
        self.frame = frame
        older = FactorisedReduction() if frame.finer else ADAPT
        self.calls = {
            "pre0": OpCall(op=older, inputs=(frame.older,), channels=frame.width),
            "pre1": OpCall(op=ADAPT, inputs=(frame.newer,), channels=frame.width),
        }
        self.pre0, self.pre1 = (call.op.module(call) for call in self.calls.values())
        self.edges = nn.ModuleDict()
        for source, target in EDGES:
            stride = frame.stride if source < 2 else 1
            shape = self.calls[f"pre{source}"].output() if source < 2 else frame.inner
            self.edges[f"edge{source}{target}"] = mixed_edge(
                CELL_OPS, shape, stride=stride, settings=settings
            )

    def forward(self, older: Tensor, newer: Tensor, weights: Weights, live: Live) -> Tensor:
        """Run the cell; edges that leave one node run together."""
        maps = {0: self.pre0(older), 1: self.pre1(newer)}
        sums: dict[int, Tensor] = {}
        for node in (0, 1, 2):
            source = sums[2] if node == 2 else maps[node]
            leaving = [index for index, (start, _) in enumerate(EDGES) if start == node]
            mixes = [self.mixed[index] for index in leaving]
            keys = [self.frame.keys[index] for index in leaving]
            outputs = mix(mixes, source, [weights[key] for key in keys], [live[key] for key in keys])
            for index, output in zip(leaving, outputs, strict=True):
                target = EDGES[index][1]
                sums[target] = sums[target] + output if target in sums else output
        return torch.cat([sums[2], sums[3]], dim=1)

    @property
    def mixed(self) -> list[Mixed]:
        """The mixed operators in the order of the edges."""
        return [edge for edge in self.edges.values() if isinstance(edge, Mixed)]

    def operator_cost(self, weights: Weights, price: Price) -> Tensor:
        """Return the expected price of the edges (AutoRTNet equation 4)."""
        rows = zip(self.mixed, self.frame.keys, strict=True)
        return torch.stack([mixed.expected_price(weights[key], price) for mixed, key in rows]).sum()

    def cost(self, weights: Weights, price: Price) -> Tensor:
        """Return the expected price of everything that a plan has of this cell: see `_structure_cost`."""
        return self.operator_cost(weights, price) + self._structure_cost(self.zeros(weights), price)

    def zeros(self, weights: Weights) -> list[Tensor]:
        """Return the probability of `zero` for each edge."""
        return [per_batch(weights[key])[ZERO] for key in self.frame.keys]

    def _structure_cost(self, zeros: Sequence[Tensor], price: Price) -> Tensor:
        """Price inputs that some edge reads, sums of two or three terms, blank nodes and the concatenation."""
        frame, (z02, z12, z03, z13, z23) = self.frame, zeros
        two, three = (_call(Sum(), *[frame.inner] * terms, channels=frame.width) for terms in (2, 3))
        blank = _call(Zero(), frame.newer, channels=frame.width, stride=frame.stride)
        concat = _call(Concat(), frame.inner, frame.inner, channels=2 * frame.width)
        e03, e13, e23 = 1 - z03, 1 - z13, 1 - z23
        pairs = (1 - z02) * (1 - z12) + e03 * e13 * z23 + e03 * z13 * e23 + z03 * e13 * e23
        return (
            (1 - z02 * z03) * price(self.calls["pre0"])
            + (1 - z12 * z13) * price(self.calls["pre1"])
            + pairs * price(two)
            + e03 * e13 * e23 * price(three)
            + (z02 * z12 + z03 * z13 * z23) * price(blank)
            + price(concat)
        )

    def reads(self, weights: Weights) -> tuple[Tensor, Tensor]:
        """Return the probabilities that the older and the newer input are read at all; blank nodes read the newer."""
        z02, z12, z03, z13, z23 = self.zeros(weights)
        return 1 - z02 * z03, 1 - z12 * z13 * (1 - z02) * (1 - z03 * z23)


def mixed_edge(
    options: Sequence[CellOp | AggregationOp], source: Shape, *, stride: int, settings: SupernetSettings
) -> Mixed:
    """Build all operators of one edge; `zero` is not part of any plan and costs nothing."""
    calls: Mapping[str, OpCall | None] = {
        name: None
        if name == "zero"
        else _call(operator(name, stride=stride), source, channels=source.channels, stride=stride)
        for name in options
    }
    mixed = Mixed(
        calls,
        fuse=None if settings.kernels is None else FusedUnits(settings.kernels),
        recompute=settings.recompute,
    )
    if not settings.affine:
        freeze_affine(mixed)
    return mixed


def _call(op: Operator, *inputs: Shape, channels: int, stride: int = 1) -> OpCall:
    return OpCall(op=op, inputs=inputs, channels=channels, stride=stride)

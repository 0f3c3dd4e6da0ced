"""The relaxed latency of the supernet (FasterSeg section 3.3, without the faults of the release).

The cost of reaching a cell is that of its inputs in proportion; the latency is the sum over the ends of all scales, the
head left out. Widths enter as a pairwise expectation, which for one-hot rows is the entry of exactly these two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from segtailor.core.errors import MissingCost
from segtailor.core.plan import OpCall, Operator, Shape
from segtailor.nets.mixed import Price, per_batch
from segtailor.nets.relax import Weights
from segtailor.ops import Conv, FactorisedReduction, Identity
from segtailor.spaces.multi_resolution.grid import FRAME, OPTIONS, Grid, Place
from segtailor.spaces.multi_resolution.layers import OPERATORS_BY_NAME
from segtailor.spaces.multi_resolution.paths import RATES

Kind: TypeAlias = tuple[
    int, str, str, int
]  # scale, who writes what is read, who reads what is written, stride
SKIPS: dict[int, Operator] = {1: Identity(), 2: FactorisedReduction(first=False)}


class Prices(NamedTuple):
    """Prices on one device: (operators, read widths, written widths) by kind of cell, and of stems by set."""

    price: Price
    stems: Tensor
    tables: Mapping[Kind, Tensor]


class RelaxedCost:
    """Expected cost of stem and cells under weights; tables of prices are made once for a price and a device."""

    def __init__(self, grid: Grid, image: Shape) -> None:
        self.grid = grid
        self.sizes = [image]
        for _ in range(2 + self.grid.scales):
            self.sizes.append(self.sizes[-1].halved(1, 2))
        self._known: Prices | None = None

    def __call__(self, weights: Weights, price: Price) -> Tensor:
        """Return the sum over the scales of the cost to the end of each."""
        return torch.stack(self.branches(weights, price)).sum()

    def branches(self, weights: Weights, price: Price) -> list[Tensor]:
        """Return the cost to the end of every scale, finest first."""
        rows = {name: per_batch(row) for name, row in weights.items()}
        some = rows[FRAME]
        if self._known is None or self._known.price != price or self._known.stems.device != some.device:
            self._known = self._tables(price, some.device)
        known = self._known
        own = self._mixed(rows, known)
        same: dict[Place, Tensor] = {}
        down: dict[Place, Tensor] = {}
        for cell in self.grid.cells:
            reached = self._reached(cell, rows, same=same, down=down, known=known)
            same[cell] = reached + own[cell, 1]
            if (cell, 2) in own:
                down[cell] = reached + own[cell, 2]
        return [same[Place(self.grid.layers - 1, scale)] for scale in range(self.grid.scales)]

    def _reached(
        self,
        cell: Place,
        rows: Weights,
        *,
        same: Mapping[Place, Tensor],
        down: Mapping[Place, Tensor],
        known: Prices,
    ) -> Tensor:
        costs = [(down if source.scale < cell.scale else same)[source] for source in self.grid.sources(cell)]
        if not costs:
            return (rows[FRAME] * known.stems.to(rows[FRAME].dtype)).sum()
        return costs[0] if len(costs) == 1 else (rows[cell.entry] * torch.stack(costs)).sum()

    def _mixed(self, rows: Weights, known: Prices) -> dict[tuple[Place, int], Tensor]:
        """Return the expected price of each cell at both strides; cells that share a table are priced together."""
        found: dict[tuple[Place, int], Tensor] = {}
        for key, members in self._kinds().items():
            stride = key[3]
            operators, reads, writes = [], [], []
            for cell in members:
                target = self.grid.below(cell) if stride == 1 else self.grid.beside(cell)
                operators.append(rows[cell.operator])
                reads.append(rows[FRAME] if cell.layer == 0 else rows[cell.width])
                writes.append(rows[FRAME] if target is None else rows[target.width])
            stacked = [torch.stack(row) for row in (operators, reads, writes)]
            table = known.tables[key].to(stacked[0].dtype)
            costs = torch.einsum("nk,ni,no,kio->n", *stacked, table).unbind()
            found |= {(cell, stride): cost for cell, cost in zip(members, costs, strict=True)}
        return found

    def _kinds(self) -> dict[Kind, list[Place]]:
        kinds: dict[Kind, list[Place]] = {}
        for cell in self.grid.cells:
            read = "stem" if cell.layer == 0 else "cell"
            written = "head" if self.grid.below(cell) is None else "cell"
            kinds.setdefault((cell.scale, read, written, 1), []).append(cell)
            if self.grid.beside(cell) is not None:
                kinds.setdefault((cell.scale, read, "cell", 2), []).append(cell)
        return kinds

    def _tables(self, price: Price, device: torch.device) -> Prices:
        stems, heads = ([pair[side] for pair in self.grid.sets] for side in (0, 1))
        ratios = {"stem": stems, "head": heads, "cell": list(self.grid.ratios)}
        tables = {}
        for kind in self._kinds():
            scale, read, written, stride = kind
            values = self._table(price, scale, ratios[read], ratios[written], stride=stride)
            tables[kind] = torch.tensor(values, dtype=torch.float64, device=device)
        own = torch.tensor([self._stem(price, ratio) for ratio in stems], dtype=torch.float64, device=device)
        return Prices(price, own, tables)

    def _table(
        self, price: Price, scale: int, reads: list[int], writes: list[int], *, stride: int
    ) -> list[list[list[float]]]:
        rate, size = RATES[scale], self.sizes[3 + scale]
        found = []
        for name in OPTIONS:
            found.append(
                [
                    [
                        _price(
                            price, name, size._replace(channels=rate * read), rate * stride * write, stride
                        )
                        for write in writes
                    ]
                    for read in reads
                ]
            )
        return found

    def _stem(self, price: Price, ratio: int) -> float:
        total, width = 0.0, self.sizes[0].channels
        for number, (repeats, channels) in enumerate(((1, 4 * ratio), (2, 8 * ratio), (2, 8 * ratio))):
            source = self.sizes[number]._replace(channels=width)
            total += price(OpCall(op=Conv(repeats=repeats), inputs=(source,), channels=channels, stride=2))
            width = channels
        return total


def _price(price: Price, name: str, source: Shape, channels: int, stride: int) -> float:
    """Price an operator. A table made from networks has no skips: those at stride 1 vanish, the others are replaced."""
    if name != "skip":
        op = OPERATORS_BY_NAME[name]  # type: ignore[index]
        return price(OpCall(op=op, inputs=(source,), channels=channels, stride=stride))
    try:
        return price(OpCall(op=SKIPS[stride], inputs=(source,), channels=channels, stride=stride))
    except MissingCost:
        if stride == 1:
            return 0.0
        others = (_price(price, other, source, channels, stride) for other in OPTIONS[1:])
        return min(others, default=math.inf)

"""The cells of the supernet, the decisions that drive them, and the scores that a distribution over these stands for.

A cell (layer, scale) reads what arrives at it: from the finer scale by a stride of 2, from its own by a stride of 1.
Decisions are named after the cell they belong to: `op3_16`, `entry3_16`, and `width3_16` for what arrives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

from segtailor.core.errors import InvalidArchitecture
from segtailor.core.space import Decision
from segtailor.spaces.multi_resolution.architecture import CELL_OPERATORS, RATES
from segtailor.spaces.multi_resolution.derive import BARRED, ArchitectureScores

OPTIONS = ("skip", *CELL_OPERATORS)
ENTRIES = ("finer", "same")
FRAME = "frame"  # the decision about stem and head


class GridCell(NamedTuple):
    """A cell: its layer and the index of its scale."""

    layer: int
    scale: int

    @property
    def rate(self) -> int:
        """How often the image is larger than the map here."""
        return RATES[self.scale]

    @property
    def operator(self) -> str:
        """The decision about its operator."""
        return f"op{self.layer}_{self.rate}"

    @property
    def entry(self) -> str:
        """The decision about its input."""
        return f"entry{self.layer}_{self.rate}"

    @property
    def width(self) -> str:
        """The decision about the width of what arrives."""
        return f"width{self.layer}_{self.rate}"


class Slot(NamedTuple):
    """Where a cell of a derived network comes from: its node, its cell here, the index of its operator, its stride."""

    name: str
    cell: GridCell
    operator: int
    stride: int


@dataclass(frozen=True, kw_only=True)
class Grid:
    """`sets` are the stem and head ratios to choose from; `ends` the rates at which each branch may end."""

    layers: int = 16
    ratios: tuple[int, ...] = (4, 6, 8, 10, 12)
    sets: tuple[tuple[int, int], ...] = ((8, 8), (12, 12))
    ends: tuple[tuple[int, ...], ...] = ((32,), (8, 16))

    def __post_init__(self) -> None:
        if self.layers <= self.scales:
            raise InvalidArchitecture(
                f"layers: {self.layers}; a supernet with {self.scales} scales needs {self.scales + 1}."
            )

    @property
    def scales(self) -> int:
        """The number of scales."""
        return 1 + max(RATES.index(rate) for rates in self.ends for rate in rates)

    @cached_property
    def cells(self) -> tuple[GridCell, ...]:
        """All cells, layer by layer, finest first."""
        return tuple(
            GridCell(layer, scale)
            for layer in range(self.layers)
            for scale in range(self.scales)
            if layer >= scale
        )

    @property
    def pairs(self) -> tuple[tuple[int, ...], ...]:
        """The ends of all branches that can be chosen together."""
        return tuple(product(*self.ends))

    @property
    def outputs(self) -> tuple[tuple[int, ...], ...]:
        """The rates whose features each output of the supernet reads: every scale alone, then every pair."""
        alone = tuple((rate,) for rate in RATES[: self.scales])
        return alone + tuple(tuple(sorted(pair)) for pair in self.pairs if len(pair) > 1)

    @cached_property
    def decisions(self) -> tuple[Decision, ...]:
        """What drives the supernet: stem and head, then for each cell its operator, its input and its width."""
        frames = tuple(f"{stem}/{head}" for stem, head in self.sets)
        rows = [Decision(name=FRAME, options=frames, group="width", ordered=True)]
        rows += [Decision(name=cell.operator, options=OPTIONS, group="op") for cell in self.cells]
        rows += [
            Decision(name=cell.entry, options=ENTRIES, group="path")
            for cell in self.cells
            if self.has_choice(cell)
        ]
        rows += [
            Decision(name=cell.width, options=self.ratios, group="width", ordered=True)
            for cell in self.cells
            if cell.layer > 0
        ]
        return tuple(rows)

    def has_choice(self, cell: GridCell) -> bool:
        """Tell whether a cell has two inputs."""
        return 0 < cell.scale < cell.layer

    def below(self, cell: GridCell) -> GridCell | None:
        """Return the cell that reads this one's result at its own resolution; None behind the last layer."""
        return GridCell(cell.layer + 1, cell.scale) if cell.layer + 1 < self.layers else None

    def beside(self, cell: GridCell) -> GridCell | None:
        """Return the cell that reads this one's result at half its resolution, if there is one."""
        room = cell.layer + 1 < self.layers and cell.scale + 1 < self.scales
        return GridCell(cell.layer + 1, cell.scale + 1) if room else None

    def sources(self, cell: GridCell) -> tuple[GridCell, ...]:
        """Return the cells that a cell reads: finer scale first. The first cell of all reads the stem."""
        finer = (GridCell(cell.layer - 1, cell.scale - 1),) if cell.scale > 0 else ()
        same = (GridCell(cell.layer - 1, cell.scale),) if cell.layer > cell.scale else ()
        return finer + same

    def scores(self, probabilities: Mapping[str, Sequence[float]]) -> ArchitectureScores:
        """Return what derivation reads: logarithms of probabilities are as good as the logits they came from."""

        def rows(names: list[str]) -> list[list[float]]:
            return [[math.log(p) if p > 0 else BARRED for p in probabilities[name]] for name in names]

        by_scale = [[cell for cell in self.cells if cell.scale == scale] for scale in range(self.scales)]
        return ArchitectureScores(
            operators=tuple(rows([cell.operator for cell in cells]) for cells in by_scale),
            entries=tuple(
                rows([cell.entry for cell in cells if self.has_choice(cell)]) for cells in by_scale[1:]
            ),
            widths=tuple(rows([cell.width for cell in cells if cell.layer > 0]) for cells in by_scale),
        )


def output_name(rates: Sequence[int]) -> str:
    """Name an output of the supernet after the rates whose features it reads, e.g. `8_32`."""
    return "_".join(str(rate) for rate in sorted(rates))

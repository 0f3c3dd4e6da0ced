"""What a network of this family is: three hyper-cells, an aggregation cell or none, a multi-scale module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TypeAlias

from segtailor.core.codec import short
from segtailor.core.errors import InvalidArchitecture
from segtailor.spaces.hyper_cell.aggregation import MAX_WIDTH, Aggregation
from segtailor.spaces.hyper_cell.operators import CELL_OPS, CellOp

EDGES = (
    (0, 2),
    (1, 2),
    (0, 3),
    (1, 3),
    (2, 3),
)  # nodes 0 and 1 are inputs, older first; the output joins 2 and 3
STAGES = 3
MAX_DEPTH = 64
Cell: TypeAlias = tuple[CellOp, CellOp, CellOp, CellOp, CellOp]  # one operator for each of EDGES


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One hyper-cell: a reduction cell, then `depth - 1` normal cells that share their operators."""

    width: int  # of a node; a cell's output has twice as many channels
    depth: int
    reduction: Cell
    normal: Cell


@dataclass(frozen=True, kw_only=True)
class MultiScale:
    """Branches of `branch` channels (1x1, dilated at `rates`, pooled), projected to `output` channels."""

    branch: int = 256
    output: int = 128
    rates: tuple[int, ...] = (6, 12, 18)

    def __post_init__(self) -> None:
        if not (1 <= self.branch <= MAX_WIDTH and 1 <= self.output <= MAX_WIDTH):
            raise InvalidArchitecture(
                f"context: branch {self.branch}, output {self.output}; allowed: 1 to {MAX_WIDTH} channels."
            )
        if len(set(self.rates)) < len(self.rates) or not all(1 <= rate <= 64 for rate in self.rates):
            raise InvalidArchitecture(
                f"context.rates: {short(list(self.rates))}; allowed: different integers from 1 to 64."
            )


MULTI_SCALE = MultiScale()  # widths chosen so that AutoRTNet-A has the published 2.5 M parameters


@dataclass(frozen=True, kw_only=True)
class HyperCellArchitecture:
    """Three hyper-cells at strides 4, 8 and 16 behind a stem of two convolutions.

    `bridge` says what a reduction cell reads as its older input behind a hyper-cell of depth 1: the map that
    entered there, brought to its scale by a factorised reduction (as the search needs it), or that map as it
    is, as in a plain chain of cells (Table 5's ablation). Without such a hyper-cell it is True.
    `lead` normal cells of hyper-cell 1, at the stem's width, precede the first reduction (Table 5 again).
    """

    stages: tuple[Stage, Stage, Stage]
    aggregation: Aggregation | None
    context: MultiScale = MULTI_SCALE
    stem: int = 8
    lead: int = 0
    bridge: bool = True

    def __post_init__(self) -> None:
        if len(self.stages) != STAGES:
            raise InvalidArchitecture(f"stages: {len(self.stages)}; allowed: {STAGES} hyper-cells.")
        _check_width("stem", self.stem)
        if not 0 <= self.lead <= MAX_DEPTH:
            raise InvalidArchitecture(f"lead: {self.lead}; allowed: 0 to {MAX_DEPTH} cells.")
        for index, stage in enumerate(self.stages):
            where = f"stages.{index}"
            _check_width(f"{where}.width", stage.width)
            if not 1 <= stage.depth <= MAX_DEPTH:
                raise InvalidArchitecture(
                    f"{where}.depth: {stage.depth}; allowed: 1 to {MAX_DEPTH} cells, reduction included."
                )
            _check_cell(f"{where}.reduction", stage.reduction)
            _check_cell(f"{where}.normal", stage.normal)
        if all(stage.depth > 1 for stage in self.stages[:-1]):
            object.__setattr__(self, "bridge", True)

    @property
    def reductions(self) -> tuple[int, ...]:
        """Positions of the three reduction cells among all cells, from 1."""
        depths = [stage.depth for stage in self.stages[:-1]]
        return tuple(accumulate(depths, initial=self.lead + 1))

    def with_reductions(self, *positions: int) -> HyperCellArchitecture:
        """Return the plain chain of as many cells that reduces at `positions`, from 1 (Table 5)."""
        cells = self.lead + sum(stage.depth for stage in self.stages)
        ends = [*positions, cells + 1]
        depths = [after - before for before, after in pairwise(ends)]
        if len(positions) != STAGES or min(ends) < 1 or min(depths) < 1:
            raise InvalidArchitecture(
                f"reductions: {list(positions)}; allowed: {STAGES} ascending positions from 1 to {cells}."
            )
        first, second, third = (
            replace(stage, depth=depth) for stage, depth in zip(self.stages, depths, strict=True)
        )
        return replace(self, stages=(first, second, third), lead=positions[0] - 1, bridge=False)


def empty_nodes(cell: Cell) -> tuple[int, ...]:
    """Return the nodes of a cell that no edge feeds: they are zero maps."""
    fed = {target for (_, target), name in zip(EDGES, cell, strict=True) if name != "zero"}
    return tuple(node for node in (2, 3) if node not in fed)


def dead(cell: Sequence[str]) -> bool:
    """Tell whether nothing of a cell's inputs gets through: an edge between its own nodes brings nothing by itself."""
    return all(name == "zero" for (source, _), name in zip(EDGES, cell, strict=True) if source < 2)


def _check_width(where: str, width: int) -> None:
    # Even, because a factorised reduction makes half of the channels with each of its two convolutions.
    if not 2 <= width <= MAX_WIDTH or width % 2:
        raise InvalidArchitecture(f"{where}: {width}; allowed: even numbers from 2 to {MAX_WIDTH}.")


def _check_cell(where: str, cell: Cell) -> None:
    if len(cell) != len(EDGES):
        raise InvalidArchitecture(f"{where}: {len(cell)} operators; allowed: {len(EDGES)}, one per edge.")
    for edge, name in zip(EDGES, cell, strict=True):
        if name not in CELL_OPS:
            raise InvalidArchitecture(
                f"{where}: '{name}' on edge {edge[0]}-{edge[1]}; allowed: {', '.join(CELL_OPS)}."
            )
    if dead(cell):
        raise InvalidArchitecture(
            f"{where}: every edge from an input is zero, so both nodes are empty; give one an operator, e.g. skip."
        )

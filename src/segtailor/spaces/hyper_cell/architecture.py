"""What a network of this family is: three hyper-cells, an aggregation cell or none, a multi-scale module.

The paper draws the wiring of the aggregation cell in a figure and states only its size: both wirings below have the
seven nodes and seven edges. `OWN_PATHS`, the default, is our reading; `ADJACENT_SCALES` is the alternative.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple, TypeAlias, get_args

from segtailor.core.codec import short
from segtailor.core.errors import InvalidArchitecture

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

# Edges of a cell: nodes 0 and 1 are its inputs, older first; the output joins nodes 2 and 3.
EDGES = ((0, 2), (1, 2), (0, 3), (1, 3), (2, 3))
STAGES = 3
INPUTS = ("H1", "H2", "H3")  # the outputs of the three hyper-cells
INPUT_STRIDES = (4, 8, 16)
MAX_DEPTH = 64
MAX_LINKS = 64
MAX_WIDTH = 4096
EdgeOps: TypeAlias = tuple[CellOp, CellOp, CellOp, CellOp, CellOp]  # one operator for each of EDGES
_NODE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]{0,15}")


class Link(NamedTuple):
    """One edge: map `src` feeds node `dst`, halved where `stride` is 2."""

    src: str
    dst: str
    stride: int


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """Edges in execution order, all of `width` channels. A node sums its edges at the finest of their scales.

    Nodes that no edge reads are final: they are concatenated in order of appearance, at the size of `like`.
    """

    links: tuple[Link, ...]
    like: str
    width: int = 72

    def __post_init__(self) -> None:
        if not 1 <= len(self.links) <= MAX_LINKS:
            raise InvalidArchitecture(f"aggregation.links: {len(self.links)}; allowed: 1 to {MAX_LINKS}.")
        if not 1 <= self.width <= MAX_WIDTH:
            raise InvalidArchitecture(f"aggregation.width: {self.width}; allowed: 1 to {MAX_WIDTH} channels.")
        for index, link in enumerate(self.links):
            self._check_link(f"aggregation.links.{index}", index, link)
        if self.like not in self.finals:
            raise InvalidArchitecture(
                f"aggregation.like: {short(self.like)} is no final node; allowed: {', '.join(self.finals)}."
            )

    @cached_property
    def strides(self) -> dict[str, int]:
        """Stride of every input and node relative to the image."""
        strides = dict(zip(INPUTS, INPUT_STRIDES, strict=True))
        for link in self.links:
            reached = strides[link.src] * link.stride
            strides[link.dst] = min(strides.get(link.dst, reached), reached)
        return strides

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """Nodes in order of appearance."""
        return tuple(dict.fromkeys(link.dst for link in self.links))

    @cached_property
    def finals(self) -> tuple[str, ...]:
        """Nodes that no edge reads, in order of appearance."""
        read = {link.src for link in self.links}
        return tuple(node for node in self.nodes if node not in read)

    def incoming(self, node: str) -> tuple[Link, ...]:
        """Return the edges that feed a node."""
        return tuple(link for link in self.links if link.dst == node)

    def _check_link(self, where: str, index: int, link: Link) -> None:
        if link.stride not in (1, 2):
            raise InvalidArchitecture(f"{where}: stride is {link.stride}; allowed: 1, 2.")
        if link.dst in INPUTS or not _NODE_NAME.fullmatch(link.dst):
            raise InvalidArchitecture(
                f"{where}: {short(link.dst)} cannot be a destination; allowed: up to 16 letters and digits, not "
                f"{', '.join(INPUTS)}."
            )
        before = [*INPUTS, *(earlier.dst for earlier in self.links[:index])]
        if link.src not in before:
            raise InvalidArchitecture(
                f"{where}: reads {short(link.src)}, which no earlier edge computes; "
                f"allowed: {', '.join(dict.fromkeys(before))}."
            )
        if any(later.dst == link.src for later in self.links[index:]):
            raise InvalidArchitecture(
                f"{where}: reads '{link.src}' before all of its edges are summed; list those first."
            )
        if any(earlier[:2] == link[:2] for earlier in self.links[:index]):
            raise InvalidArchitecture(
                f"{where}: a second edge from '{link.src}' to '{link.dst}'; one is allowed."
            )


OWN_PATHS = Wiring(
    links=(
        Link("H1", "N1", 2),
        Link("H2", "N2", 2),
        Link("N1", "N2", 2),
        Link("H3", "N3", 1),
        Link("N1", "F1", 2),
        Link("N2", "F2", 1),
        Link("N3", "F3", 1),
    ),
    like="F2",
)
ADJACENT_SCALES = Wiring(
    links=(
        Link("H1", "F1", 1),
        Link("H2", "F1", 1),
        Link("H1", "F2", 2),
        Link("H2", "F2", 1),
        Link("H3", "F2", 1),
        Link("H2", "F3", 2),
        Link("H3", "F3", 1),
    ),
    like="F2",
)


@dataclass(frozen=True, kw_only=True)
class Aggregation:
    """An aggregation cell: one operator for each edge of the wiring, in its order."""

    operators: tuple[AggregationOp, ...]
    wiring: Wiring = OWN_PATHS

    def __post_init__(self) -> None:
        edges = len(self.wiring.links)
        if len(self.operators) != edges:
            raise InvalidArchitecture(
                f"aggregation.operators: {len(self.operators)} for {edges} edges; one for each is needed."
            )
        for index, name in enumerate(self.operators):
            if name not in AGGREGATION_OPS:
                raise InvalidArchitecture(
                    f"aggregation.operators.{index}: '{name}'; allowed: {', '.join(AGGREGATION_OPS)}."
                )


@dataclass(frozen=True, kw_only=True)
class HyperCellStage:
    """One hyper-cell: a reduction cell, then `depth - 1` normal cells that share their operators."""

    width: int  # of a node; a cell's output has twice as many channels
    depth: int
    reduction: EdgeOps
    normal: EdgeOps


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

    stages: tuple[HyperCellStage, HyperCellStage, HyperCellStage]
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


def empty_nodes(cell: EdgeOps) -> tuple[int, ...]:
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


def _check_cell(where: str, cell: EdgeOps) -> None:
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

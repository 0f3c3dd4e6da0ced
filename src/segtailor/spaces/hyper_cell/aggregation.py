"""The aggregation cell as data: which map feeds which, at what stride, by which operator.

The paper draws the wiring in a figure and states only its size: both wirings below have the seven nodes and
seven edges. `OWN_PATHS`, the default, is our reading; `ADJACENT_SCALES` is the alternative.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from segtailor.core.codec import short
from segtailor.core.errors import InvalidArchitecture
from segtailor.spaces.hyper_cell.operators import AGGREGATION_OPS, AggregationOp

INPUTS = ("H1", "H2", "H3")  # the outputs of the three hyper-cells
INPUT_STRIDES = (4, 8, 16)
MAX_LINKS = 64
MAX_WIDTH = 4096
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
        found = dict(zip(INPUTS, INPUT_STRIDES, strict=True))
        for link in self.links:
            reached = found[link.src] * link.stride
            found[link.dst] = min(found.get(link.dst, reached), reached)
        return found

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

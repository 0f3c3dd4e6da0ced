"""Decisions of the family: operators of six cells, three depths, operators of the aggregation cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from segtailor.core.errors import InvalidArchitecture
from segtailor.core.plan import OpCall, Plan, Shape
from segtailor.core.space import Decision, Picks, check_picks, picks_of
from segtailor.spaces.hyper_cell.architecture import (
    AGGREGATION_OPS,
    CELL_OPS,
    EDGES,
    MULTI_SCALE,
    OWN_PATHS,
    STAGES,
    Aggregation,
    EdgeOps,
    HyperCellArchitecture,
    HyperCellStage,
    MultiScale,
    Wiring,
    dead,
)
from segtailor.spaces.hyper_cell.layers import network_plan

if TYPE_CHECKING:
    from segtailor.nets.network import Network
    from segtailor.nets.supernet import SupernetSettings
    from segtailor.nets.weights import NameMap
    from segtailor.spaces.hyper_cell.supernet import HyperCellSupernet

KINDS = ("reduction", "normal")
RESCUED = EDGES.index((1, 2))  # the edge that becomes `skip` in a dead cell


@dataclass(frozen=True, kw_only=True)
class HyperCell:
    """Ten operators per edge of six cells, the depth of each hyper-cell, five operators per aggregation edge.

    `depths` are the greatest depths, reduction cells included.
    A cell whose inputs are all picked `zero` decodes with `skip` on its edge 1-2, so that any picks give a network.
    """

    depths: tuple[int, int, int] = (5, 10, 10)
    widths: tuple[int, int, int] = (8, 24, 72)
    stem: int = 8
    wiring: Wiring | None = OWN_PATHS
    context: MultiScale = MULTI_SCALE

    architecture_type: ClassVar[type] = HyperCellArchitecture

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Per hyper-cell its depth and the operators of its two cells; then the aggregation edges."""
        rows = []
        for stage, deepest in enumerate(self.depths):
            depths = tuple(range(1, deepest + 1))
            rows.append(Decision(name=f"depth{stage + 1}", options=depths, group="depth", ordered=True))
            for kind in KINDS:
                rows += [Decision(name=key, options=CELL_OPS, group="op") for key in cell_keys(kind, stage)]
        rows += [Decision(name=key, options=AGGREGATION_OPS, group="op") for key in self.aggregation_keys()]
        return tuple(rows)

    def architecture(self, picks: Picks) -> HyperCellArchitecture:
        """Decode picks; a dead cell is rescued (see the class)."""
        check_picks(self.decisions, picks)
        first, second, third = (self._stage(picks, stage) for stage in range(STAGES))
        aggregation = None
        if self.wiring is not None:
            operators = tuple(AGGREGATION_OPS[picks[key]] for key in self.aggregation_keys())
            aggregation = Aggregation(operators=operators, wiring=self.wiring)
        return HyperCellArchitecture(
            stages=(first, second, third), aggregation=aggregation, context=self.context, stem=self.stem
        )

    def picks(self, arch: HyperCellArchitecture) -> Picks:
        """Encode an architecture of this space."""
        self._check_frame(arch)
        values: dict[str, object] = {}
        for index, stage in enumerate(arch.stages):
            values[f"depth{index + 1}"] = stage.depth
            for kind, cell in zip(KINDS, (stage.reduction, stage.normal), strict=True):
                values |= dict(zip(cell_keys(kind, index), cell, strict=True))
        if arch.aggregation is not None:
            values |= dict(zip(self.aggregation_keys(), arch.aggregation.operators, strict=True))
        return picks_of(self.decisions, values)

    def plan(self, arch: HyperCellArchitecture, image: Shape, classes: int) -> Plan:
        """Write the layers."""
        return network_plan(arch, image, classes)

    def calls(self, image: Shape, classes: int) -> Iterator[OpCall]:
        """Yield every call of any plan: it depends on operator, hyper-cell and which nodes are fed."""
        seen: set[OpCall] = set()
        for probe in self._probes():
            for call in self.plan(self.architecture(probe), image, classes).calls:
                if call not in seen:
                    seen.add(call)
                    yield call

    def supernet(
        self, image: Shape, classes: int, *, settings: SupernetSettings | None = None
    ) -> HyperCellSupernet:
        """Build the network that holds all operators at all depths."""
        from segtailor.nets.supernet import SupernetSettings
        from segtailor.spaces.hyper_cell.supernet import HyperCellSupernet

        return HyperCellSupernet(self, image, classes, settings or SupernetSettings())

    def discretise(self, probabilities: Mapping[str, Sequence[float]]) -> Picks:
        """Return the most likely operator of every edge, `zero` included, and the most likely depths."""
        from segtailor.nets.supernet import most_likely

        return most_likely(self.decisions, probabilities)

    @staticmethod
    def published_names(network: Network, arch: HyperCellArchitecture) -> NameMap:  # noqa: ARG004 - one signature
        """Return our own names: the authors released neither code nor weights."""
        from segtailor.nets.weights import NameMap

        return NameMap(names={key: (key,) for key in network.state_dict()})

    def _stage(self, picks: Picks, stage: int) -> HyperCellStage:
        reduction, normal = (_cell(picks, cell_keys(kind, stage)) for kind in KINDS)
        depth = 1 + picks[f"depth{stage + 1}"]
        return HyperCellStage(width=self.widths[stage], depth=depth, reduction=reduction, normal=normal)

    def aggregation_keys(self) -> list[str]:
        """Return the decisions of the aggregation cell's edges, in their order."""
        links = () if self.wiring is None else self.wiring.links
        return [f"aggregation_{link.src}_{link.dst}" for link in links]

    def _check_frame(self, arch: HyperCellArchitecture) -> None:
        widths = tuple(stage.width for stage in arch.stages)
        wiring = None if arch.aggregation is None else arch.aggregation.wiring
        for field, value, allowed in (
            ("widths", widths, self.widths),
            ("stem", arch.stem, self.stem),
            ("lead", arch.lead, 0),
            ("bridge", arch.bridge, True),
            ("context", arch.context, self.context),
            ("aggregation.wiring", wiring, self.wiring),
        ):
            if value != allowed:
                raise InvalidArchitecture(f"{field}: {value}; this space allows {allowed}.")

    def _probes(self) -> Iterator[Picks]:
        """Yield picks that together make every call: each operator everywhere, then empty nodes."""
        deep, shallow = (2, 2, 2), (0, 0, 0)
        skip, zero = CELL_OPS.index("skip"), CELL_OPS.index("zero")
        for number, name in enumerate(CELL_OPS):
            if name != "zero":
                yield self._uniform([number] * 5, deep, number % len(AGGREGATION_OPS))
        yield self._uniform([skip] * 5, shallow, 0)
        for feeds in ((2, 3), (0, 1), (0, 1, 2, 3)):  # node 2 empty, node 3 empty, both with two terms
            yield self._uniform([skip if edge in feeds else zero for edge in range(5)], deep, 0)

    def _uniform(self, cell: list[int], depths: tuple[int, int, int], aggregation: int) -> Picks:
        picks = dict.fromkeys(self.aggregation_keys(), aggregation)
        for stage in range(STAGES):
            picks[f"depth{stage + 1}"] = min(depths[stage], self.depths[stage] - 1)
            for kind in KINDS:
                picks |= dict(zip(cell_keys(kind, stage), cell, strict=True))
        return picks


def cell_keys(kind: str, stage: int) -> list[str]:
    """Return the decisions of a cell's edges, in their order; stages count from 0."""
    return [f"{kind}{stage + 1}_edge{source}{target}" for source, target in EDGES]


def _cell(picks: Picks, keys: list[str]) -> EdgeOps:
    cell = [CELL_OPS[picks[key]] for key in keys]
    if dead(cell):
        cell[RESCUED] = "skip"
    first, second, third, fourth, fifth = cell
    return first, second, third, fourth, fifth

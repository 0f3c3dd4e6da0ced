"""Latency as a recipe names it: a device pack, or a target of this machine. `open_cost` makes a cost of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeAlias

from segtailor.core.cost import Cost
from segtailor.core.target import parse_target
from segtailor.costs.measured import MeasuredLatency
from segtailor.costs.pack import LatencyTable, Use, read_pack, refuse_other, shipped_pack, shipped_packs
from segtailor.targets.runtime import runtime_for
from segtailor.targets.timing import TimingSettings

MIN_RUNS = 10  # of each network that is measured


@dataclass(frozen=True, kw_only=True)
class PackLatency:
    """Milliseconds from a device pack: a file, or the name of one that is shipped.

    The pack must have been made for the space, image size and classes of the search, and for `target` where it is
    given. `force` takes a pack that was made for something else.
    """

    pack: str
    target: str | None = None
    force: bool = False
    unit: ClassVar[str] = "ms"

    def open(self, use: Use, *, copy: Path | None = None) -> LatencyTable:
        """Read the pack; where `copy`, the one that a run keeps, exists, it is read instead."""
        copied = copy is not None and copy.exists()
        if self.pack in shipped_packs() and not copied:
            pack = shipped_pack(self.pack)
            if not self.force:
                refuse_other(pack, use, what=f"device pack {self.pack}")
            return LatencyTable(pack=pack)
        file = copy if copy is not None and copied else Path(self.pack)
        return LatencyTable(pack=read_pack(file, use=use, force=self.force))


@dataclass(frozen=True, kw_only=True)
class TargetLatency:
    """Milliseconds of each whole network, measured on a target of this machine for at least `seconds`."""

    target: str
    seconds: float = 0.5
    unit: ClassVar[str] = "ms"

    def open(self) -> MeasuredLatency:
        """Return the cost; a target that cannot run here raises."""
        target = parse_target(self.target)
        runtime_for(target)
        return MeasuredLatency(target=target, settings=TimingSettings(runs=MIN_RUNS, seconds=self.seconds))


RecipeCost: TypeAlias = Cost | PackLatency | TargetLatency


def open_cost(cost: RecipeCost, use: Use, *, copy: Path | None = None) -> Cost:
    """Return the cost that a recipe names; counted costs are ready as they are."""
    if isinstance(cost, PackLatency):
        return cost.open(use, copy=copy)
    return cost.open() if isinstance(cost, TargetLatency) else cost

"""Decisions of the family and their meaning (FasterSeg section 3.1, as its release derives networks)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, Literal

from segtailor.core.errors import InvalidArchitecture
from segtailor.core.plan import OpCall, Plan, Shape
from segtailor.core.space import Decision, Picks, check_picks
from segtailor.spaces.multi_resolution.architecture import (
    RATES,
    Branch,
    MultiResolutionArchitecture,
    end_rate,
)
from segtailor.spaces.multi_resolution.derive import (
    Derivation,
    Path,
    allowed_paths,
    compact,
    derive,
    kept_operators,
    scales,
)
from segtailor.spaces.multi_resolution.grid import FRAME, OPTIONS, Grid, GridCell, Slot, output_name
from segtailor.spaces.multi_resolution.layers import cell_name, network_plan, possible_calls

if TYPE_CHECKING:
    from segtailor.nets.network import Network
    from segtailor.nets.supernet import SupernetSettings
    from segtailor.nets.weights import NameMap
    from segtailor.spaces.multi_resolution.supernet import MultiResolutionSupernet

FEWEST_LAYERS = 8  # below, no path to rate 32 has two stride-1 layers at each rate


@dataclass(frozen=True, kw_only=True)
class MultiResolution:
    """Two branches over the same layers: per branch a path, an operator per layer, a width per connection.

    Each branch has picks of its own, since only so every derived network can be expressed: in the supernet the two
    share their scores where their paths coincide, yet derivation may remove a layer from one branch only (the published
    student's layer 9). Many picks mean one network: removed layers leave no trace, and skips that the derivation
    forbids become `conv`.
    """

    layers: int = 16
    ratios: tuple[int, ...] = (4, 6, 8, 10, 12)
    stem_ratios: tuple[int, ...] = (8, 12)  # student and teacher; not searched in the paper
    head_ratios: tuple[int, ...] = (8, 12)
    ends: tuple[tuple[int, ...], ...] = ((32,), (8, 16))  # of each branch; the supernet has no pair 8, 16
    path16: Literal["release", "consistent"] = "release"

    architecture_type: ClassVar[type] = MultiResolutionArchitecture

    def __post_init__(self) -> None:
        if self.layers < FEWEST_LAYERS:
            raise InvalidArchitecture(f"layers: {self.layers}; allowed: at least {FEWEST_LAYERS}.")
        for field in ("ratios", "stem_ratios", "head_ratios"):
            values = getattr(self, field)
            if not values or min(values) < 1 or list(values) != sorted(set(values)):
                raise InvalidArchitecture(
                    f"{field}: {values}; allowed: at least one, each 1 or more, ascending."
                )
        rates = [rate for branch in self.ends for rate in branch]
        branches = all(min(one) > max(other) for one, other in pairwise(self.ends) if one and other)
        if not 1 <= len(self.ends) <= 2 or not all(self.ends) or not set(rates) <= set(RATES) or not branches:
            raise InvalidArchitecture(
                f"ends: {self.ends}; allowed: one or two branches, each with rates of {list(RATES)} to end at, "
                "those of the first all coarser than those of the second."
            )

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Stem and head ratio; then for each branch its path, its operators, its widths."""
        rows = [
            Decision(name="stem_ratio", options=self.stem_ratios, group="width", ordered=True),
            Decision(name="head_ratio", options=self.head_ratios, group="width", ordered=True),
        ]
        for branch in range(len(self.ends)):
            paths = tuple(_path_label(path) for path in self._paths(branch))
            rows.append(Decision(name=f"branch{branch}_path", options=paths, group="path"))
            for layer in range(self.layers):
                rows.append(Decision(name=f"branch{branch}_op{layer}", options=OPTIONS, group="op"))
            for layer in range(self.layers - 1):
                name = f"branch{branch}_width{layer}"
                rows.append(Decision(name=name, options=self.ratios, group="width", ordered=True))
        return tuple(rows)

    def architecture(self, picks: Picks) -> MultiResolutionArchitecture:
        """Decode picks: derive each branch as if the picked operators had all the probability."""
        check_picks(self.decisions, picks)
        head_ratio = self.head_ratios[picks["head_ratio"]]
        branches = []
        for branch in range(len(self.ends)):
            path = self._paths(branch)[picks[f"branch{branch}_path"]]
            rows = [_one_hot(picks[f"branch{branch}_op{layer}"]) for layer in range(self.layers)]
            ratios = [self.ratios[picks[f"branch{branch}_width{layer}"]] for layer in range(self.layers - 1)]
            branches.append(compact(kept_operators(rows, path), ratios, path, head_ratio=head_ratio))
        stem_ratio = self.stem_ratios[picks["stem_ratio"]]
        return MultiResolutionArchitecture(
            branches=tuple(branches), stem_ratio=stem_ratio, head_ratio=head_ratio
        )

    def picks(self, arch: MultiResolutionArchitecture) -> Picks:
        """Encode an architecture: the first path that holds it, cells as early as possible, then skips."""
        picks = {
            "stem_ratio": _index("stem_ratio", arch.stem_ratio, self.stem_ratios),
            "head_ratio": _index("head_ratio", arch.head_ratio, self.head_ratios),
        }
        if len(arch.branches) != len(self.ends):
            raise InvalidArchitecture(f"branches: {len(arch.branches)}; this space has {len(self.ends)}.")
        for number, branch in enumerate(arch.branches):
            picks |= self._branch_picks(number, branch)
        if self.architecture(picks) != arch:
            raise InvalidArchitecture(
                "branches: too short for this space, or without a cell between two halvings; "
                f"over {self.layers} layers derivation keeps more cells."
            )
        return picks

    def plan(self, arch: MultiResolutionArchitecture, image: Shape, classes: int) -> Plan:
        """Write the layers, auxiliary heads included."""
        return network_plan(arch, image, classes)

    def calls(self, image: Shape, classes: int) -> Iterator[OpCall]:
        """Yield every call of any plan."""
        return possible_calls(
            image, classes, ratios=self.ratios, stem_ratios=self.stem_ratios, head_ratios=self.head_ratios
        )

    @property
    def grid(self) -> Grid:
        """The cells of the supernet; its sets are the stem and head ratios in pairs."""
        if len(self.stem_ratios) != len(self.head_ratios):
            raise InvalidArchitecture(
                f"stem_ratios {self.stem_ratios} and head_ratios {self.head_ratios}: a supernet needs as many of both, "
                "since it pairs them."
            )
        sets = tuple(zip(self.stem_ratios, self.head_ratios, strict=True))
        return Grid(layers=self.layers, ratios=self.ratios, sets=sets, ends=self.ends)

    def supernet(
        self, image: Shape, classes: int, *, settings: SupernetSettings | None = None
    ) -> MultiResolutionSupernet:
        """Build the network that holds all paths, operators and widths."""
        from segtailor.spaces.multi_resolution.supernet import (
            MultiResolutionSettings,
            MultiResolutionSupernet,
        )

        own = MultiResolutionSettings.of(settings)
        return MultiResolutionSupernet(self.grid, image, classes, own, space=self)

    @staticmethod
    def supernet_settings() -> type[SupernetSettings]:
        """Return the type of the settings that `supernet` takes."""
        from segtailor.spaces.multi_resolution.supernet import MultiResolutionSettings

        return MultiResolutionSettings

    def derived(self, probabilities: Mapping[str, Sequence[float]]) -> dict[str, MultiResolutionArchitecture]:
        """Return the network for every choice of ends, by the supernet's output that reads the same scales."""
        grid = self.grid
        frame = list(probabilities[FRAME])
        stem_ratio, head_ratio = grid.sets[frame.index(max(frame))]
        scores = grid.scores(probabilities)
        networks = {}
        for ends in grid.pairs:
            how = Derivation(
                ends=ends,
                ratios=self.ratios,
                stem_ratio=stem_ratio,
                head_ratio=head_ratio,
                path16=self.path16,
            )
            networks[output_name(ends)] = derive(scores, how)
        return networks

    def alternatives(self, probabilities: Mapping[str, Sequence[float]]) -> dict[str, Picks]:
        """Return the picks for every choice of ends, coarsest first, by the output of the supernet that judges it."""
        networks = reversed(self.derived(probabilities).items())
        return {name: self.picks(arch) for name, arch in networks}

    def discretise(self, probabilities: Mapping[str, Sequence[float]]) -> Picks:
        """Return the picks of the derived network with the coarsest ends."""
        return next(iter(self.alternatives(probabilities).values()))

    def slots(self, arch: MultiResolutionArchitecture) -> list[Slot]:
        """Return where in the supernet each cell of a network is: on the first paths that hold its branches."""
        slots: dict[str, Slot] = {}
        for number, branch in enumerate(arch.branches):
            places, path = self._place(number, branch)
            levels = scales(path, self.layers)
            for position, (cell, layer) in enumerate(zip(branch, places, strict=True)):
                name = cell_name(arch, number, position)
                slot = Slot(name, GridCell(layer, levels[layer]), OPTIONS.index(cell.operator), cell.stride)
                slots.setdefault(name, slot)
        return list(slots.values())

    @staticmethod
    def published_names(network: Network, arch: MultiResolutionArchitecture) -> NameMap:
        """Return how the reference project names the weights of this network."""
        from segtailor.spaces.multi_resolution.names import published_names

        return published_names(network, arch)

    def _paths(self, branch: int) -> tuple[Path, ...]:
        return tuple(path for end in self.ends[branch] for path in allowed_paths(self.layers, end))

    def _branch_picks(self, number: int, branch: Branch) -> dict[str, int]:
        places, path = self._place(number, branch)
        field = f"branch{number}"
        picks = {f"{field}_path": self._paths(number).index(path)}
        picks |= {f"{field}_op{layer}": 0 for layer in range(self.layers)}
        picks |= {f"{field}_width{layer}": 0 for layer in range(self.layers - 1)}
        for position, (cell, layer) in enumerate(zip(branch, places, strict=True)):
            picks[f"{field}_op{layer}"] = OPTIONS.index(cell.operator)
            if position < len(branch) - 1:  # the last cell writes the head ratio
                where = f"branches.{number}.{position}.ratio"
                picks[f"{field}_width{layer}"] = _index(where, cell.ratio, self.ratios)
        return picks

    def _place(self, number: int, branch: Branch) -> tuple[list[int], Path]:
        """Return the layer of each cell, on the first path with room for all."""
        halvings = [position for position, cell in enumerate(branch) if cell.stride == 2]
        needed = _runs(halvings, len(branch))
        for path in self._paths(number):
            room = _runs(path, self.layers)
            if len(room) == len(needed) and all(n <= r for n, r in zip(needed, room, strict=True)):
                starts = (0, *path)
                return [
                    start + step for start, run in zip(starts, needed, strict=True) for step in range(run)
                ], path
        raise InvalidArchitecture(
            f"branches.{number}: no path of this space over {self.layers} layers, which ends at rate "
            f"{' or '.join(map(str, self.ends[number]))}, holds a branch to rate {end_rate(branch)} with {needed} "
            "cells per rate (each halving cell counts for the rate it writes)."
        )


def _runs(halvings: Sequence[int], length: int) -> list[int]:
    """Return how many cells or layers write each rate, in order; a halving one writes the coarser rate."""
    return [stop - start for start, stop in pairwise((0, *halvings, length))]


def _one_hot(index: int) -> list[float]:
    return [float(index == option) for option in range(len(OPTIONS))]


def _path_label(path: Path) -> str:
    end = str(RATES[len(path)])
    return f"{end} at {', '.join(map(str, path))}" if path else end


def _index(field: str, value: int, options: tuple[int, ...]) -> int:
    if value not in options:
        raise InvalidArchitecture(f"{field}: {value}; this space allows {list(options)}.")
    return options.index(value)

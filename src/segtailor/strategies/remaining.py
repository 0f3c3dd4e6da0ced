"""A space without the options that a supernet has lost: what is left can all be judged with its weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from segtailor.core.plan import OpCall, Plan, Shape
from segtailor.core.space import Architecture, Decision, Picks, SearchSpace, check_picks


@dataclass(frozen=True, kw_only=True)
class Remaining:
    """`space` with the `options` left of some decisions; architectures stay those of `space`."""

    space: SearchSpace
    options: Mapping[str, tuple[int, ...]]

    @property
    def architecture_type(self) -> type:
        """The architectures of the whole space."""
        return self.space.architecture_type

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The decisions with what is left of each."""
        return tuple(
            replace(row, options=tuple(row.options[index] for index in self._left[row.name]))
            for row in self.space.decisions
        )

    def architecture(self, picks: Picks) -> Architecture:
        """Decode picks among what is left."""
        check_picks(self.decisions, picks)
        return self.space.architecture({name: self._left[name][index] for name, index in picks.items()})

    def picks(self, arch: Architecture) -> Picks:
        """Encode an architecture; a decision without effect, whose canonical option is gone, takes the first left."""
        whole = self.space.picks(arch)
        return {
            name: left.index(whole[name]) if whole[name] in left else 0 for name, left in self._left.items()
        }

    @cached_property
    def _left(self) -> dict[str, tuple[int, ...]]:
        rows = self.space.decisions
        return {row.name: tuple(self.options.get(row.name, range(len(row.options)))) for row in rows}

    def plan(self, arch: Architecture, image: Shape, classes: int) -> Plan:
        """Expand an architecture."""
        return self.space.plan(arch, image, classes)

    def calls(self, image: Shape, classes: int) -> Iterator[OpCall]:
        """Yield every call of the whole space: at least those that are left."""
        return self.space.calls(image, classes)

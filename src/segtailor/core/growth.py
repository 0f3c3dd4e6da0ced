"""How the networks of a space grow: coordinates, directions, and the default over ordered decisions.

A space whose growth is more than 'one option further' offers a method `growth() -> Growth`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from random import Random
from typing import Protocol, TypeAlias, runtime_checkable

from segtailor.core.sampling import sample_picks
from segtailor.core.space import Architecture, SearchSpace

Coordinates: TypeAlias = Mapping[str, int | Fraction]


@dataclass(frozen=True, kw_only=True)
class Direction:
    """One way to grow: what is added to which coordinates per step."""

    name: str
    delta: Coordinates


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Where growth starts, the directions in their order of preference, and the way to architectures and back.

    A coordinate stops at its value in `top`; without one it ends where `build` raises `InvalidArchitecture`.
    """

    start: Coordinates
    directions: tuple[Direction, ...]
    build: Callable[[Coordinates], Architecture]
    locate: Callable[[Architecture], Coordinates]
    top: Coordinates = field(default_factory=dict)

    def move(self, place: Coordinates, direction: Direction, k: int) -> dict[str, int | Fraction]:
        """Return the coordinates `k` steps away from `place`."""
        moved = dict(place)
        for name, step in direction.delta.items():
            value = place[name] + k * step
            moved[name] = min(value, self.top[name]) if name in self.top else value
        return moved


@runtime_checkable
class Growable(Protocol):
    """A space that describes its own growth."""

    def growth(self) -> Growth:
        """Return start, directions and conversions."""


def growth_of(space: SearchSpace, rng: Random) -> Growth:
    """Return how a space grows: its own description, or every ordered decision one option further.

    By default growth starts from the first option of each ordered decision and a random one of the others.
    """
    if isinstance(space, Growable):
        return space.growth()
    ordered = [decision for decision in space.decisions if decision.ordered and len(decision.options) > 1]
    start = sample_picks(space, rng) | {decision.name: 0 for decision in ordered}
    return Growth(
        start=start,
        directions=tuple(Direction(name=item.name, delta={item.name: 1}) for item in ordered),
        build=lambda place: space.architecture({name: int(index) for name, index in place.items()}),
        locate=lambda arch: dict(space.picks(arch)),
        top={decision.name: len(decision.options) - 1 for decision in ordered},
    )

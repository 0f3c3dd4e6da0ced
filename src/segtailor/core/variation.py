"""New architectures of any space: random ones, mutations, crossovers, neighbours, and networks that grow.

Everything works on the decisions of a space. A space whose networks grow in another way than 'the next option of one
decision' has a method `growth() -> Growth`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from random import Random
from typing import Protocol, TypeAlias, runtime_checkable

from segtailor.core.space import Architecture, Picks, SearchSpace

Coordinates: TypeAlias = Mapping[str, int | Fraction]  # by name


def sample_picks(space: SearchSpace, rng: Random) -> dict[str, int]:
    """Pick an option of every decision at random, each with the same probability."""
    return {decision.name: rng.randrange(len(decision.options)) for decision in space.decisions}


def sample(space: SearchSpace, rng: Random) -> Architecture:
    """Return a random architecture."""
    return space.architecture(sample_picks(space, rng))


def mutate(space: SearchSpace, picks: Picks, rng: Random, *, rate: float = 0.1) -> dict[str, int]:
    """Change each pick with probability `rate`, and at least one if any decision has several options."""
    changed = dict(picks)
    open_decisions = [decision for decision in space.decisions if len(decision.options) > 1]
    if not open_decisions:
        return changed
    chosen = [decision for decision in open_decisions if rng.random() < rate] or [rng.choice(open_decisions)]
    for decision in chosen:
        others = [index for index in range(len(decision.options)) if index != picks[decision.name]]
        changed[decision.name] = rng.choice(others)
    return changed


def crossover(space: SearchSpace, first: Picks, second: Picks, rng: Random) -> dict[str, int]:
    """Take each pick from one of the two parents at random."""
    return {
        decision.name: (first if rng.random() < 0.5 else second)[decision.name]
        for decision in space.decisions
    }


def neighbours(space: SearchSpace, picks: Picks) -> Iterator[dict[str, int]]:
    """Yield all picks that differ in one decision; of an ordered decision only the next smaller and larger."""
    for decision in space.decisions:
        here = picks[decision.name]
        others = (here - 1, here + 1) if decision.ordered else range(len(decision.options))
        for index in others:
            if index != here and 0 <= index < len(decision.options):
                yield {**picks, decision.name: index}


@dataclass(frozen=True, kw_only=True)
class Direction:
    """One way to grow: what is added to which coordinates per step."""

    name: str
    delta: Coordinates


@dataclass(frozen=True, kw_only=True)
class Growth:
    """How the networks of a space grow: start, directions in order of preference, conversion to architectures and back.

    A coordinate grows up to its value in `top`; without one, until `build` raises `InvalidArchitecture`.
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
    """Return how the networks of a space grow: as the space says, or by the next option of each ordered decision.

    By default growth starts from the first option of each ordered decision and a random option of the others.
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

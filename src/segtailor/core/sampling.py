"""Sample, mutate, cross and neighbour picks: written once over decisions, free for every space."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from segtailor.core.space import Architecture, Picks, SearchSpace


def sample_picks(space: SearchSpace, rng: Random) -> dict[str, int]:
    """Pick every decision uniformly."""
    return {decision.name: rng.randrange(len(decision.options)) for decision in space.decisions}


def sample(space: SearchSpace, rng: Random) -> Architecture:
    """Return a random architecture."""
    return space.architecture(sample_picks(space, rng))


def mutate(space: SearchSpace, picks: Picks, rng: Random, *, rate: float = 0.1) -> dict[str, int]:
    """Change each pick with probability `rate`, and at least one where any decision has two options."""
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
    """Take each pick from one parent or the other."""
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

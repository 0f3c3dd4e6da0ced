"""New architectures within the budget: bounded draws, no architecture twice, an error that names the knob."""

from __future__ import annotations

import math
from collections.abc import Iterable
from random import Random

from segtailor.core.errors import InvalidArchitecture
from segtailor.core.space import Architecture, Picks, fingerprint_of
from segtailor.core.strategy import Candidate, Problem, SearchProblem
from segtailor.core.variation import mutate, sample_picks
from segtailor.search.prices import Prices

TRIES = 256  # draws per candidate before the space counts as exhausted


class Draws:
    """Turns picks into candidates that are new and affordable."""

    def __init__(self, problem: Problem, prices: Prices, rng: Random) -> None:
        self._problem = problem
        self._prices = prices
        self._rng = rng
        self._seen: set[str] = set()
        self.cheapest: tuple[float, Picks] = (math.inf, {})

    def accept(self, picks: Picks) -> Candidate | None:
        """Return a candidate unless it was seen before, costs too much or cannot be built at this image size."""
        arch = self._problem.space.architecture(picks)
        key = fingerprint_of(arch)
        if key in self._seen:
            return None
        try:
            cost = self._prices(arch)
        except InvalidArchitecture:
            return None
        if cost < self.cheapest[0]:
            self.cheapest = (cost, picks)
        if self._problem.limit is not None and cost > self._problem.limit:
            return None
        self._seen.add(key)
        return Candidate(architecture=arch, cost=cost)

    def fresh(self) -> Candidate | None:
        """Return a random new candidate, or none where the space seems exhausted."""
        for _ in range(TRIES):
            found = self.accept(sample_picks(self._problem.space, self._rng))
            if found is not None:
                return found
        return self._walk()

    def several(self, count: int) -> list[Candidate]:
        """Return up to `count` new candidates; that there is none at all is an error."""
        found: list[Candidate] = []
        while len(found) < count:
            candidate = self.fresh()
            if candidate is None:
                break
            found.append(candidate)
        if not found:
            raise self.nothing()
        return found

    def remember(self, seen: Iterable[Architecture], *, cheapest: tuple[float, Picks]) -> None:
        """Take up what an earlier session accepted and saw."""
        self._seen.update(fingerprint_of(arch) for arch in seen)
        self.cheapest = cheapest

    def _walk(self) -> Candidate | None:
        """Search around the cheapest architecture: a tight budget is hard to hit by chance."""
        if not self.cheapest[1]:
            return None
        for _ in range(TRIES):
            found = self.accept(mutate(self._problem.space, self.cheapest[1], self._rng))
            if found is not None:
                return found
        return None

    def nothing(self) -> SearchProblem:
        """Build the error for a budget that nothing meets."""
        unit, limit = self._problem.cost.unit, self._problem.limit
        if limit is None:
            return SearchProblem(
                f"no architecture of this space fits an image of {self._problem.image.height}x"
                f"{self._problem.image.width}; use larger images."
            )
        return SearchProblem(
            f"no architecture within {limit:g} {unit} in {2 * TRIES} draws; the cheapest seen costs "
            f"{self.cheapest[0]:.4g} {unit}. Raise the budget, shrink the image or choose a smaller space."
        )

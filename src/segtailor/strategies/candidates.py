"""Candidates of trial strategies: new architectures within the budget, each priced once.

Draws are bounded and no architecture is proposed twice. Where nothing is found, the error says what to change.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from random import Random

from segtailor.core.errors import InvalidArchitecture, MissingCost
from segtailor.core.space import Architecture, Picks, fingerprint_of
from segtailor.core.strategy import Candidate, Problem, SearchProblem
from segtailor.core.variation import mutate, sample_picks

MAX_DRAWS = 256  # per candidate, before the space counts as exhausted


class ArchitecturePrices:
    """The cost of every architecture, computed once: measuring again would give other numbers for past decisions.

    `known` maps fingerprints to costs; it is saved with the search and restored on resume.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.known: dict[str, float] = {}

    def __call__(self, arch: Architecture) -> float:
        """Return the cost of an architecture; a cost that is negative or not finite is an error."""
        key = fingerprint_of(arch)
        if key not in self.known:
            price = float(self._problem.price(arch))
            if not math.isfinite(price) or price < 0:
                raise MissingCost(
                    f"the cost of architecture {key} is {price} {self._problem.cost.unit}; a cost must be a finite "
                    "number of at least 0. Check the latency source, or calibrate it again."
                )
            self.known[key] = price
        return self.known[key]


class Draws:
    """Turn picks into candidates that are new and within the budget."""

    def __init__(self, problem: Problem, prices: ArchitecturePrices, rng: Random) -> None:
        self._problem = problem
        self._prices = prices
        self._rng = rng
        self._proposed: set[str] = set()
        self.cheapest: tuple[float, Picks] = (math.inf, {})

    def accept(self, picks: Picks) -> Candidate | None:
        """Return a candidate, or none if it was proposed before, costs too much or does not fit the image size."""
        arch = self._problem.space.architecture(picks)
        key = fingerprint_of(arch)
        if key in self._proposed:
            return None
        try:
            cost = self._prices(arch)
        except InvalidArchitecture:
            return None
        if cost < self.cheapest[0]:
            self.cheapest = (cost, picks)
        if self._problem.limit is not None and cost > self._problem.limit:
            return None
        self._proposed.add(key)
        return Candidate(architecture=arch, cost=cost)

    def fresh(self) -> Candidate | None:
        """Return a random new candidate, or none if the space seems exhausted."""
        for _ in range(MAX_DRAWS):
            candidate = self.accept(sample_picks(self._problem.space, self._rng))
            if candidate is not None:
                return candidate
        return self._near_cheapest()

    def several(self, count: int) -> list[Candidate]:
        """Return up to `count` new candidates; finding none at all is an error."""
        candidates: list[Candidate] = []
        while len(candidates) < count:
            candidate = self.fresh()
            if candidate is None:
                break
            candidates.append(candidate)
        if not candidates:
            raise self.nothing()
        return candidates

    def remember(self, proposed: Iterable[Architecture], *, cheapest: tuple[float, Picks]) -> None:
        """Restore what an earlier session proposed, and the cheapest architecture that it met."""
        self._proposed.update(fingerprint_of(arch) for arch in proposed)
        self.cheapest = cheapest

    def nothing(self) -> SearchProblem:
        """Build the error for a budget that no architecture meets."""
        unit, limit = self._problem.cost.unit, self._problem.limit
        if limit is None:
            return SearchProblem(
                f"no architecture of this space fits an image of {self._problem.image.height}x"
                f"{self._problem.image.width}; use larger images."
            )
        return SearchProblem(
            f"no architecture within {limit:g} {unit} in {2 * MAX_DRAWS} draws; the cheapest seen costs "
            f"{self.cheapest[0]:.4g} {unit}. Raise the budget, shrink the image or choose a smaller space."
        )

    def _near_cheapest(self) -> Candidate | None:
        """Mutate the cheapest architecture known: random draws rarely meet a tight budget."""
        if not self.cheapest[1]:
            return None
        for _ in range(MAX_DRAWS):
            candidate = self.accept(mutate(self._problem.space, self.cheapest[1], self._rng))
            if candidate is not None:
                return candidate
        return None

"""Multi-objective evolution (NSGA-II, Deb et al. 2002) over quality and cost, with the budget as a hard constraint.

Costs are known before a trial, so that candidates over the budget are never evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from segtailor.core.codec import Json
from segtailor.core.errors import InvalidArchitecture
from segtailor.core.job import Job
from segtailor.core.plan import count as count_plan
from segtailor.core.space import Architecture, Picks
from segtailor.core.strategy import Candidate, Judged, Problem, SearchProblem
from segtailor.core.variation import crossover, mutate, neighbours
from segtailor.strategies.candidates import ArchitecturePrices, Draws
from segtailor.strategies.front import survivors
from segtailor.strategies.trial_strategy import Halving, all_failed, check_at_least, check_trials
from segtailor.strategies.trials import TrialSearch

MAX_ATTEMPTS = 64  # at a new child, before a random architecture is taken instead
MAX_MOVES = 3  # of a local mutation: near the budget, one decision can grow only if another shrinks


@dataclass(frozen=True, kw_only=True)
class Evolution:
    """Breed architectures along the front of quality and cost.

    A generation has `children`, by default as many as the population; with fewer, results are used sooner, which
    helps if there are few trials. `mutation` is the probability of each pick to change; a share `local` of mutations
    instead moves one to three picks by the smallest step. `crossover` is the probability that a child has two parents.
    A share `known` of the first population are the known architectures (`Problem.known`) that use most of the budget.
    A share `focus` of parents is chosen from the best by the objective, the others from the population along the front.
    """

    trials: int = 200
    population: int = 16
    children: int | None = None
    mutation: float = 0.1
    local: float = 0.8
    crossover: float = 0.5
    focus: float = 0.8
    known: float = 0.5
    halving: Halving | None = None

    def __post_init__(self) -> None:
        check_at_least("trials", self.trials, 1)
        check_at_least("population", self.population, 2)
        if self.children is not None:
            check_at_least("children", self.children, 1)
        for name in ("mutation", "local", "crossover", "focus", "known"):
            if not 0 <= getattr(self, name) <= 1:
                raise SearchProblem(
                    f"{name}: {getattr(self, name)} is no probability; give a number from 0 to 1."
                )

    def check(self, problem: Problem) -> None:
        """Refuse what cannot work."""
        check_trials(problem)

    def job(self, problem: Problem) -> Job:
        """Return the search as a job."""
        return TrialSearch(self, problem)

    def begin(self, problem: Problem, prices: ArchitecturePrices) -> EvolutionState:
        """Return a new state."""
        return EvolutionState(self, problem, prices)


class EvolutionState:
    """The population, best first, and what was asked so far."""

    def __init__(self, settings: Evolution, problem: Problem, prices: ArchitecturePrices) -> None:
        self.expected: int | None = settings.trials
        self._settings = settings
        self._space = problem.space
        self._objective = problem.objective
        self._problem = problem
        self._known = problem.known
        self._rng = Random(problem.seed)
        self._draws = Draws(problem, prices, self._rng)
        self._population: list[Judged] = []  # along the front, best first
        self._elite: list[Judged] = []  # by the objective, best first
        self._asked = 0
        self._generation = 0

    def ask(self) -> Sequence[Candidate]:
        """Return the next generation; fewer or none if the trials or the space are used up."""
        first = not self._population
        several = self._settings.population if first else self._settings.children or self._settings.population
        count = min(several, self._settings.trials - self._asked)
        if count <= 0:
            return ()
        batch = self._first(count) if first else self._children(count)
        if len(batch) < count:
            self._asked = self._settings.trials  # the space has no more
        self._asked += len(batch)
        return batch

    def tell(self, judged: Sequence[Judged]) -> None:
        """Keep the best of parents and children."""
        self._generation += 1
        self._population = survivors([*self._population, *judged], self._settings.population)
        done = [item for item in (*self._elite, *judged) if item.done]
        self._elite = sorted(done, key=self._score, reverse=True)[: self._settings.population // 2]
        if not any(item.done for item in self._population):
            raise all_failed(judged, "candidates of the first generation")

    def summary(self) -> Mapping[str, Json]:
        """Return the number of generations."""
        return {"generations": self._generation}

    def _first(self, count: int) -> list[Candidate]:
        """Return known architectures within the budget, the largest first, and random ones."""
        most = round(self._settings.known * count)
        known: list[Candidate] = []
        for arch in sorted(self._known, key=self._macs, reverse=True):
            candidate = self._draws.accept(self._space.picks(arch)) if len(known) < most else None
            if candidate is not None:
                known.append(candidate)
        return known + (self._draws.several(count - len(known)) if len(known) < count else [])

    def _macs(self, arch: Architecture) -> float:
        """Return the size of an architecture without measuring it; one that does not fit the image comes last."""
        try:
            plan = self._space.plan(arch, self._problem.image, self._problem.task.outputs)
        except InvalidArchitecture:
            return -math.inf
        return count_plan(plan).macs

    def _children(self, count: int) -> list[Candidate]:
        children: list[Candidate] = []
        for _ in range(count):
            child = self._child() or self._draws.fresh()
            if child is None:
                break
            children.append(child)
        return children

    def _child(self) -> Candidate | None:
        for _ in range(MAX_ATTEMPTS):
            picks = self._parent()
            if self._rng.random() < self._settings.crossover:
                picks = crossover(self._space, picks, self._parent(), self._rng)
            child = self._draws.accept(self._mutated(picks))
            if child is not None:
                return child
        return None

    def _parent(self) -> Picks:
        """Return the winner of a tournament of two; both lists are sorted, so the smaller index wins."""
        focused = self._rng.random() < self._settings.focus
        group = self._elite if focused else [item for item in self._population if item.done]
        winner = min(self._rng.randrange(len(group)), self._rng.randrange(len(group)))
        return self._space.picks(group[winner].candidate.architecture)

    def _score(self, item: Judged) -> float:
        return float(self._objective.score(item.quality, item.cost))

    def _mutated(self, picks: Picks) -> Picks:
        if self._rng.random() >= self._settings.local:
            return mutate(self._space, picks, self._rng, rate=self._settings.mutation)
        for _ in range(self._rng.randint(1, MAX_MOVES)):
            near = list(neighbours(self._space, picks))
            picks = self._rng.choice(near) if near else picks
        return picks

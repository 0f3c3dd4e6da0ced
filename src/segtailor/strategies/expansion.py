"""Progressive expansion: LPS-Net's Algorithm 1 over any space that can grow.

A parent is grown in every direction, as many steps as come closest to the cost of the most expensive single step. The
children are judged, and the one with the largest gain of quality per cost is the next parent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from segtailor.core.codec import Json
from segtailor.core.errors import InvalidArchitecture, MissingCost, Unsupported, unknown
from segtailor.core.job import Job
from segtailor.core.space import fingerprint_of, parse_architecture
from segtailor.core.strategy import Candidate, Judged, Problem, SearchProblem
from segtailor.core.variation import Coordinates, Direction, Growth, growth_of
from segtailor.strategies.candidates import ArchitecturePrices
from segtailor.strategies.trial_strategy import Halving, all_failed, check_at_least, check_trials
from segtailor.strategies.trials import TrialSearch

MAX_GROWTH = 256  # steps in one direction: ends the loop if the cost never reaches the target


@dataclass(frozen=True, kw_only=True)
class Expansion:
    """Grow a small network step by step; `start` is an architecture document, by default the space's smallest.

    `directions` names the directions to grow in, or the words they begin with, e.g. `depth` or `width`; all without it.
    A step is as large as if all directions were open, so that growth in one dimension takes as many as in all.
    """

    steps: int = 14
    start: Mapping[str, Any] | None = None
    halving: Halving | None = None
    directions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_at_least("steps", self.steps, 1)

    def check(self, problem: Problem) -> None:
        """Refuse a space that cannot grow."""
        check_trials(problem)
        if not growth_of(problem.space, Random(problem.seed)).directions:
            raise Unsupported(
                f"expansion cannot grow a {type(problem.space).__name__}: it has no ordered decision and describes no "
                "growth. Use evolution, random or controller, or another space."
            )
        self.growth(problem)

    def growth(self, problem: Problem) -> Growth:
        """Return how the networks of a problem grow, in the directions asked for."""
        whole = growth_of(problem.space, Random(problem.seed))
        if not self.directions:
            return whole
        names = [direction.name for direction in whole.directions]
        for asked in self.directions:
            if not any(_is_called(name, asked) for name in names):
                raise unknown(
                    "direction of this space", asked, sorted({*names, *(n.split()[0] for n in names)})
                )
        kept = [
            row for row in whole.directions if any(_is_called(row.name, asked) for asked in self.directions)
        ]
        return replace(whole, directions=tuple(kept))

    def job(self, problem: Problem) -> Job:
        """Return the search as a job."""
        return TrialSearch(self, problem)

    def begin(self, problem: Problem, prices: ArchitecturePrices) -> ExpansionState:
        """Return a new state."""
        return ExpansionState(self, problem, prices)


@dataclass(frozen=True, kw_only=True)
class Child:
    """A grown network: `k` steps in a direction, the coordinates it reaches, and the candidate with its cost."""

    direction: str
    k: int
    place: Coordinates
    candidate: Candidate


@dataclass(frozen=True, kw_only=True)
class Grower:
    """The growth of networks within a budget: the part of the algorithm without results.

    The single steps of `pace`, by default all directions of the growth, say how large a step is.
    """

    growth: Growth
    prices: ArchitecturePrices
    limit: float | None = None
    pace: tuple[Direction, ...] = ()
    faults: dict[str, str] = field(
        default_factory=dict
    )  # why a direction ended, unless because of the budget

    def target(self, place: Coordinates) -> float | None:
        """Return the cost of the most expensive single step, or none if nothing can grow."""
        steps = [self.child(place, direction, 1) for direction in self.pace or self.growth.directions]
        costs = [child.candidate.cost for child in steps if child is not None]
        return max(costs) if costs else None

    def reach(self, place: Coordinates, direction: Direction, target: float) -> Child | None:
        """Return the child whose cost is closest to the target; of two that are equally close, the larger."""
        best: Child | None = None
        before = dict(place)
        for k in range(1, MAX_GROWTH + 1):
            child = self.child(place, direction, k)
            if child is None or child.place == before:
                break
            before = dict(child.place)
            if best is None or abs(child.candidate.cost - target) <= abs(best.candidate.cost - target):
                best = child
            if child.candidate.cost >= target:
                break
        return best

    def children(self, place: Coordinates) -> list[Child]:
        """Return one child per direction that can be taken, in the order of the directions."""
        target = self.target(place)
        if target is None:
            return []
        reached = (self.reach(place, direction, target) for direction in self.growth.directions)
        return [child for child in reached if child is not None]

    def child(self, place: Coordinates, direction: Direction, k: int) -> Child | None:
        """Return the network `k` steps away, or none if it cannot be built or priced, or is over the budget."""
        moved = self.growth.move(place, direction, k)
        if moved == dict(place):
            return None
        try:
            arch = self.growth.build(moved)
            cost = self.prices(arch)
        except (InvalidArchitecture, MissingCost) as problem:
            self.faults[direction.name] = str(problem)
            return None
        if self.limit is not None and cost > self.limit:
            return None
        candidate = Candidate(architecture=arch, cost=cost, origin={"direction": direction.name, "k": k})
        return Child(direction=direction.name, k=k, place=moved, candidate=candidate)


def distinct(children: Sequence[Child]) -> list[Child]:
    """Remove children that are the same network as an earlier one."""
    first: dict[str, Child] = {}
    for child in children:
        first.setdefault(fingerprint_of(child.candidate.architecture), child)
    return list(first.values())


class ExpansionState:
    """The parent, its coordinates, and the family so far."""

    def __init__(self, settings: Expansion, problem: Problem, prices: ArchitecturePrices) -> None:
        self._settings = settings
        self._unit = problem.cost.unit
        growth, whole = settings.growth(problem), growth_of(problem.space, Random(problem.seed))
        self._grower = Grower(growth=growth, prices=prices, limit=problem.limit, pace=whole.directions)
        self._coordinates: Coordinates = growth.start
        if settings.start is not None:
            start = parse_architecture(dict(settings.start), what="start of the expansion")
            self._coordinates = growth.locate(start)
        self._parent: Judged | None = None
        self._children: list[Child] = []
        self._family: list[Json] = []
        self._asked = 0
        self._gainless: list[str] = []

    @property
    def expected(self) -> int | None:
        """Candidates so far, and one per direction for every step to come."""
        left = max(0, self._settings.steps - len(self._family))
        return max(1, self._asked) + left * len(self._grower.growth.directions)

    def ask(self) -> Sequence[Candidate]:
        """Return the start, then the children of each parent; none if no step is left or nothing fits the budget."""
        batch = [self._root()] if self._parent is None else self._next()
        self._asked += len(batch)
        return batch

    def tell(self, judged: Sequence[Judged]) -> None:
        """Choose the next parent."""
        if self._parent is None:
            if not judged[0].done:
                raise all_failed(judged, "trials of the first network")
            self._set_parent(judged[0], {"step": 0})
            return
        step = len(self._family)
        if not any(item.done for item in judged):
            raise all_failed(judged, f"candidates of step {step}")
        slopes = [_slope(item, self._parent) for item in judged]
        chosen = max(range(len(judged)), key=lambda index: slopes[index])  # of equal ones the first
        child = self._children[chosen]
        if slopes[chosen] <= 0:
            self._gainless.append(
                f"step {step}: no direction gained quality (the best, '{child.direction}', changed it by "
                f"{judged[chosen].quality - self._parent.quality:+.4f} and was taken all the same); short trainings "
                "differ by chance: give more --set evaluator.fit.steps, or fewer --steps."
            )
        self._coordinates = child.place
        self._set_parent(
            judged[chosen],
            {"step": step, "direction": child.direction, "k": child.k, "slope": slopes[chosen]},
        )

    def summary(self) -> Mapping[str, Json]:
        """Return the chosen network of every step, and why directions ended before the budget did."""
        unspent = self._unspent()
        open_names = {direction.name for direction in self._grower.growth.directions}
        return {
            "family": self._family,
            "ended": {name: why for name, why in self._grower.faults.items() if name in open_names},
            "warnings": [*self._gainless, *([] if unspent is None else [unspent])],
        }

    def _unspent(self) -> str | None:
        """Return a warning if the budget has room for more steps."""
        limit, parent = self._grower.limit, self._parent
        if limit is None or parent is None or len(self._family) <= self._settings.steps:
            return None
        if not self._costlier(parent):
            return None
        return (
            f"growing ended after {self._settings.steps} step(s) at {parent.cost:.4g} of {limit:.4g} {self._unit}: "
            "give more --steps to use the budget."
        )

    def _root(self) -> Candidate:
        arch = self._grower.growth.build(self._coordinates)
        cost = self._grower.prices(arch)
        limit = self._grower.limit
        if limit is not None and cost > limit:
            raise SearchProblem(
                f"no architecture within {limit:g} {self._unit}: expansion starts with the cheapest, which costs "
                f"{cost:.4g} {self._unit}. Raise the budget, shrink the image or give a smaller start."
            )
        return Candidate(architecture=arch, cost=cost, origin={"step": 0})

    def _next(self) -> list[Candidate]:
        step = len(self._family)
        if step > self._settings.steps or self._parent is None:
            return []
        costlier = self._costlier(self._parent)
        if not costlier and step == 1 and self._grower.limit is None:
            why = "; ".join(list(self._grower.faults.values())[:1]) or "all cost the same"
            raise SearchProblem(
                "expansion: no direction gives a network that can be built and costs more than its parent "
                f"({why}). Check that the cost covers this space at this image size, e.g. calibrate it again."
            )
        self._children = costlier
        return [
            Candidate(
                architecture=child.candidate.architecture,
                cost=child.candidate.cost,
                origin={"step": step, **child.candidate.origin},
            )
            for child in costlier
        ]

    def _costlier(self, parent: Judged) -> list[Child]:
        """Return the children that cost more than their parent; a gain per cost is defined only for these."""
        children = distinct(self._grower.children(self._coordinates))
        return [child for child in children if child.candidate.cost > parent.cost]

    def _set_parent(self, chosen: Judged, how: Mapping[str, Json]) -> None:
        self._parent = chosen
        member: dict[str, Json] = {
            **how,
            "trial": chosen.result.id,
            "fingerprint": fingerprint_of(chosen.candidate.architecture),
            "quality": chosen.quality,
            "cost": chosen.cost,
        }
        self._family.append(member)


def _is_called(name: str, asked: str) -> bool:
    """Tell whether a direction is meant: by its name, or by the words it begins with."""
    return name == asked or re.match(rf"{re.escape(asked)}[\d\s]", name) is not None


def _slope(child: Judged, parent: Judged) -> float:
    """Return the gain of quality per cost; minus infinity for a child that did not finish."""
    if not child.done:
        return float("-inf")
    return (child.quality - parent.quality) / (child.cost - parent.cost)

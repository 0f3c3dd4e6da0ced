"""From a learned distribution to one architecture: a shortlist within the budget, and the best of what was judged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch

from segtailor.core.codec import Json
from segtailor.core.space import Architecture, Decision, Picks, architecture_document, fingerprint_of
from segtailor.core.strategy import Candidate, Judged, Problem, SearchProblem, TrialResult
from segtailor.nets.mixed import Price
from segtailor.nets.relax import one_hot_weights
from segtailor.nets.supernet import Alternating, Supernet
from segtailor.strategies.candidates import ArchitecturePrices
from segtailor.strategies.front import pareto
from segtailor.strategies.trajectory import Probabilities

# An architecture to judge, and the supernet's output that stands for it; None if it is judged as a network of its own.
Shortlisted: TypeAlias = tuple[str | None, Architecture]


def sampled_picks(
    decisions: Sequence[Decision], probabilities: Probabilities, *, count: int, seed: int
) -> Iterator[dict[str, int]]:
    """Draw picks from independent categorical distributions, one for each decision."""
    rng = np.random.default_rng(seed)
    tables = {}
    for decision in decisions:
        row = np.array(probabilities[decision.name], dtype=np.float64)
        tables[decision.name] = row / row.sum()
    for _ in range(count):
        yield {name: int(rng.choice(len(row), p=row)) for name, row in tables.items()}


class Choosing:
    """Decides what to judge and what to choose; picks over the budget are changed where it loses least probability."""

    def __init__(
        self, problem: Problem, supernet: Supernet, *, price: Price, prices: ArchitecturePrices
    ) -> None:
        self.problem = problem
        self.supernet = supernet
        self.price = price
        self.prices = prices

    def likely(self, probabilities: Probabilities) -> Shortlisted:
        """Return the most likely architecture, or the first of the alternatives that the supernet judges itself."""
        alternatives = self._alternatives(probabilities)
        if alternatives:
            return alternatives[0]
        space = self.problem.space
        return None, space.architecture(space.discretise(probabilities))  # type: ignore[attr-defined]

    def shortlist(
        self, probabilities: Probabilities, *, samples: int, seed: int, limited: bool = True
    ) -> list[Shortlisted]:
        """Return what to judge: the most likely architecture, and distinct draws changed to meet the budget.

        If the supernet judges alternatives itself, these are returned. Without `limited` the budget is ignored.
        """
        space = self.problem.space
        alternatives = self._alternatives(probabilities)
        if alternatives:
            return alternatives
        likely = dict(space.discretise(probabilities))  # type: ignore[attr-defined]
        draws = sampled_picks(space.decisions, probabilities, count=samples, seed=seed)
        proposals = [likely, *draws]
        if limited:
            proposals = [likely, *(self.affordable(picks, probabilities) for picks in proposals)]
        distinct: dict[str, Architecture] = {}
        for picks in proposals:
            arch = space.architecture(picks)
            distinct.setdefault(fingerprint_of(arch), arch)
        return [(None, arch) for arch in distinct.values()]

    def _alternatives(self, probabilities: Probabilities) -> list[Shortlisted]:
        space = self.problem.space
        if not isinstance(space, Alternating):
            return []
        by_output = space.alternatives(probabilities)
        return [(output, space.architecture(picks)) for output, picks in by_output.items()]

    def outcome(
        self, candidates: Sequence[Architecture], qualities: Sequence[float], *, limited: bool = True
    ) -> dict[str, Json]:
        """Return the best within the budget by the objective, or the cheapest if none is within it, and the front.

        Without `limited` the budget is ignored.
        """
        if len(qualities) < len(candidates):
            raise SearchProblem("the search is not finished, so there is nothing to choose from; resume it.")
        judged = [
            Judged(
                candidate=Candidate(architecture=arch, cost=self.prices(arch)),
                result=TrialResult(id=number, status="done", quality=quality, cost=self.prices(arch)),
            )
            for number, (arch, quality) in enumerate(zip(candidates, qualities, strict=True))
        ]
        limit, score = self.problem.limit if limited else None, self.problem.objective.score
        within = [item for item in judged if limit is None or item.cost <= limit]
        pool = within or [min(judged, key=lambda item: item.cost)]
        best = max(pool, key=lambda item: float(score(item.quality, item.cost)))
        return {
            "architecture": architecture_document(best.candidate.architecture),
            **best.described(),
            "met": bool(within),
            "front": [item.described() for item in pareto(judged)],
            "trials": [item.record(seed=self.problem.seed) for item in judged],
        }

    def over_budget(self, candidates: Sequence[Shortlisted]) -> str | None:
        """Return a warning if nothing is within the budget."""
        limit, unit = self.problem.limit, self.problem.cost.unit
        least = min(self.prices(arch) for _, arch in candidates)
        if limit is None or least <= limit:
            return None
        return (
            f"nothing that the search left is within the budget of {limit:g} {unit}; the cheapest costs {least:.4g} "
            f"{unit}. Raise cost.weight, set cost.adapt, or lower remove_below, which drops cheap candidates for good."
        )

    def affordable(self, picks: Picks, probabilities: Probabilities) -> dict[str, int]:
        """Return picks changed to meet the budget, or the cheapest reached; unchanged if there is no budget."""
        limit, current = self.problem.limit, dict(picks)
        if limit is None:
            return current
        useless: set[tuple[str, int]] = set()
        for _ in range(sum(len(row) for row in probabilities.values())):
            cost = self.prices(self.problem.space.architecture(current))
            if cost <= limit:
                break
            swap = self._best_swap(current, probabilities, useless)
            if swap is None:
                break
            changed = {**current, swap[0]: swap[1]}
            if self.prices(self.problem.space.architecture(changed)) < cost:
                current = changed
            else:
                useless.add(swap)
        return self._undo_needless(current, picks, probabilities, limit)

    def _undo_needless(
        self, changed: Picks, first: Picks, probabilities: Probabilities, limit: float
    ) -> dict[str, int]:
        """Undo changes that are not needed, most likely first: a later one may have saved more than was missing."""
        current = dict(changed)
        changes = [name for name in current if current[name] != first[name]]
        for name in sorted(changes, key=lambda name: -probabilities[name][first[name]]):
            undone = {**current, name: first[name]}
            if self.prices(self.problem.space.architecture(undone)) <= limit:
                current = undone
        return current

    def _best_swap(
        self, picks: Picks, probabilities: Probabilities, useless: set[tuple[str, int]]
    ) -> tuple[str, int] | None:
        best: tuple[float, str, int] | None = None
        for name, slopes in self._option_costs(picks).items():
            row, here = probabilities[name], picks[name]
            for option, slope in enumerate(slopes):
                saved = slopes[here] - slope
                if option == here or row[option] <= 0 or saved <= 0 or (name, option) in useless:
                    continue
                lost = math.log(max(row[here], 1e-30)) - math.log(max(row[option], 1e-30))
                if best is None or lost / saved < best[0]:
                    best = (lost / saved, name, option)
        return None if best is None else best[1:]

    def _option_costs(self, picks: Picks) -> Mapping[str, Sequence[float]]:
        """Return the cost of every option: the gradient of the cost at one-hot weights."""
        weights = {
            name: row.double().requires_grad_()
            for name, row in one_hot_weights(self.supernet.decisions, picks).items()
        }
        cost = self.supernet.cost(weights, self.price)
        slopes = torch.autograd.grad(cost, list(weights.values()), allow_unused=True)
        return {
            name: [0.0] * len(weights[name]) if slope is None else slope.tolist()
            for name, slope in zip(weights, slopes, strict=True)
        }

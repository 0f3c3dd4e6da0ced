"""From a learned distribution to one architecture: what is likely, affordable, and the best of what was judged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch

from segtailor.core.codec import Json, to_json
from segtailor.core.space import Architecture, Decision, Picks, architecture_document, fingerprint_of
from segtailor.core.strategy import Candidate as Priced
from segtailor.core.strategy import Judged, Problem, SearchProblem, TrialResult
from segtailor.nets.mixed import Price
from segtailor.nets.relax import one_hot_weights
from segtailor.nets.supernet import Alternating, Supernet
from segtailor.strategies.front import pareto
from segtailor.strategies.prices import ArchitecturePrices
from segtailor.strategies.trajectory import Probabilities

# What may be chosen: the output of the supernet that judges it, None for the weights it would take over, and itself.
Candidate: TypeAlias = tuple[str | None, Architecture]


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
    """Says what to judge and what to choose. Picks over the budget give up the least probability for what it saves."""

    def __init__(
        self, problem: Problem, supernet: Supernet, *, price: Price, prices: ArchitecturePrices
    ) -> None:
        self.problem = problem
        self.supernet = supernet
        self.price = price
        self.prices = prices

    def likely(self, probabilities: Probabilities) -> Candidate:
        """Return the most likely architecture; of several that the supernet judges itself, the first."""
        alternatives = self._alternatives(probabilities)
        if alternatives:
            return alternatives[0]
        space = self.problem.space
        return None, space.architecture(space.discretise(probabilities))  # type: ignore[attr-defined]

    def shortlist(
        self, probabilities: Probabilities, *, samples: int, seed: int, limited: bool = True
    ) -> list[Candidate]:
        """Return what to judge: the most likely architecture, and distinct draws in forms within the budget.

        Where the supernet itself judges alternatives, these. Where the choice is not `limited` the budget does not
        count.
        """
        space = self.problem.space
        alternatives = self._alternatives(probabilities)
        if alternatives:
            return alternatives
        likely = dict(space.discretise(probabilities))  # type: ignore[attr-defined]
        draws = sampled_picks(space.decisions, probabilities, count=samples, seed=seed)
        wanted = [likely, *draws]
        if limited:
            wanted = [likely, *(self.affordable(picks, probabilities) for picks in wanted)]
        distinct: dict[str, Architecture] = {}
        for picks in wanted:
            arch = space.architecture(picks)
            distinct.setdefault(fingerprint_of(arch), arch)
        return [(None, arch) for arch in distinct.values()]

    def _alternatives(self, probabilities: Probabilities) -> list[Candidate]:
        space = self.problem.space
        if not isinstance(space, Alternating):
            return []
        found = space.alternatives(probabilities)
        return [(output, space.architecture(picks)) for output, picks in found.items()]

    def outcome(
        self, candidates: Sequence[Architecture], qualities: Sequence[float], *, limited: bool = True
    ) -> dict[str, Json]:
        """Return the best within the budget by the objective, or the cheapest where none is, and the front.

        Where the choice is not `limited` the budget does not count.
        """
        if len(qualities) < len(candidates):
            raise SearchProblem("the search is not finished, so there is nothing to choose from; resume it.")
        judged = [
            Judged(
                candidate=Priced(architecture=arch, cost=self.prices(arch)),
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
            **_describe(best),
            "met": bool(within),
            "front": [_describe(item) for item in pareto(judged)],
            "trials": [self._record(item) for item in judged],
        }

    def over_budget(self, candidates: Sequence[Candidate]) -> str | None:
        """Say that nothing is within the budget, where that is so."""
        limit, unit = self.problem.limit, self.problem.cost.unit
        least = min(self.prices(arch) for _, arch in candidates)
        if limit is None or least <= limit:
            return None
        return (
            f"nothing that the search left is within the budget of {limit:g} {unit}; the cheapest costs {least:.4g} "
            f"{unit}. Raise cost.weight, set cost.adapt, or lower remove_below, which drops cheap candidates for good."
        )

    def _record(self, item: Judged) -> dict[str, Json]:
        """Return a judged architecture in the form that searches by trials have, too."""
        return {
            "id": item.result.id,
            "fingerprint": fingerprint_of(item.candidate.architecture),
            "budget": 1.0,
            "seed": self.problem.seed,
            "architecture": to_json(item.candidate.architecture),
            "origin": {},
            "result": to_json(item.result),
        }

    def affordable(self, picks: Picks, probabilities: Probabilities) -> dict[str, int]:
        """Return picks within the budget, or the cheapest on the way there; the same where there is no budget."""
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
        return self._given_back(current, picks, probabilities, limit)

    def _given_back(
        self, changed: Picks, first: Picks, probabilities: Probabilities, limit: float
    ) -> dict[str, int]:
        """Undo what turned out not to be needed, likeliest first: a swap may have saved more than was left to save."""
        current = dict(changed)
        moved = [name for name in current if current[name] != first[name]]
        for name in sorted(moved, key=lambda name: -probabilities[name][first[name]]):
            undone = {**current, name: first[name]}
            if self.prices(self.problem.space.architecture(undone)) <= limit:
                current = undone
        return current

    def _best_swap(
        self, picks: Picks, probabilities: Probabilities, useless: set[tuple[str, int]]
    ) -> tuple[str, int] | None:
        best: tuple[float, str, int] | None = None
        for name, slopes in self._slopes(picks).items():
            row, here = probabilities[name], picks[name]
            for option, slope in enumerate(slopes):
                saved = slopes[here] - slope
                if option == here or row[option] <= 0 or saved <= 0 or (name, option) in useless:
                    continue
                lost = math.log(max(row[here], 1e-30)) - math.log(max(row[option], 1e-30))
                if best is None or lost / saved < best[0]:
                    best = (lost / saved, name, option)
        return None if best is None else best[1:]

    def _slopes(self, picks: Picks) -> Mapping[str, Sequence[float]]:
        """Return what every option would add to the cost: the gradient at a definite choice holds all of it."""
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


def _describe(item: Judged) -> dict[str, Json]:
    return {
        "trial": item.result.id,
        "fingerprint": fingerprint_of(item.candidate.architecture),
        "quality": item.quality,
        "cost": item.cost,
    }

"""Design studies: judge given architectures side by side, if wanted each scaled to the same cost."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from segtailor.core.codec import Json
from segtailor.core.errors import InvalidArchitecture, MissingCost
from segtailor.core.job import Job
from segtailor.core.registry import STRATEGIES
from segtailor.core.space import Architecture, parse_architecture
from segtailor.core.strategy import Candidate, Judged, Problem, SearchProblem
from segtailor.strategies.candidates import ArchitecturePrices
from segtailor.strategies.trial_strategy import Halving, all_failed, check_trials
from segtailor.strategies.trials import TrialSearch

MOST = 256  # the largest factor that a field is scaled by


@dataclass(frozen=True, kw_only=True)
class Entrant:
    """One architecture document of a study; `scaled` names the integers of it that grow to match the cost."""

    name: str
    architecture: Mapping[str, Any]
    scaled: str | None = None


@STRATEGIES.register("study")
@dataclass(frozen=True, kw_only=True)
class Study:
    """Judge a given list of architectures, each scaled to the cost of `match` where that is given."""

    entrants: tuple[Entrant, ...] = ()
    match: Mapping[str, Any] | None = None
    halving: Halving | None = None

    def check(self, problem: Problem) -> None:
        """Refuse a study of nothing, and documents that are no architectures."""
        check_trials(problem)
        if not self.entrants:
            raise SearchProblem("a study needs entrants; use a recipe that has some, e.g. lpsnet-blocks.")
        for entrant in self.entrants:
            parse_architecture(dict(entrant.architecture), what=f"entrant '{entrant.name}'")

    def job(self, problem: Problem) -> Job:
        """Return the search as a job."""
        return TrialSearch(self, problem)

    def begin(self, problem: Problem, prices: ArchitecturePrices) -> StudyState:
        """Return a fresh state."""
        return StudyState(self, problem, prices)


class StudyState:
    """One batch with everything; the table of entrants at the end."""

    def __init__(self, settings: Study, problem: Problem, prices: ArchitecturePrices) -> None:
        self.expected: int | None = len(settings.entrants)
        self._settings = settings
        self._problem = problem
        self._prices = prices
        self._asked = False
        self._rows: list[Json] = []
        self._judged: Sequence[Judged] = ()

    def ask(self) -> Sequence[Candidate]:
        """Return all entrants within the budget, matched in cost."""
        if self._asked:
            return ()
        self._asked = True
        target = None
        if self._settings.match is not None:
            target = self._prices(parse_architecture(dict(self._settings.match), what="match of the study"))
        found = [self._entry(entrant, target) for entrant in self._settings.entrants]
        limit = self._problem.limit
        batch = [item for item in found if limit is None or item.cost <= limit]
        if not batch:
            unit, least = self._problem.cost.unit, min(item.cost for item in found)
            raise SearchProblem(
                f"no architecture within {limit:g} {unit}: the cheapest entrant costs {least:.4g} {unit}. "
                "Raise the budget or shrink the image."
            )
        self.expected = len(batch)
        return batch

    def tell(self, judged: Sequence[Judged]) -> None:
        """Fill the table."""
        if not any(item.done for item in judged):
            raise all_failed(judged, "entrants")
        self._judged = judged
        for item in judged:
            row: dict[str, Json] = {
                **item.candidate.origin,
                "trial": item.result.id,
                "quality": item.result.quality,
                "cost": item.cost,
            }
            self._rows.append(row)

    def summary(self) -> Mapping[str, Json]:
        """Return the table of entrants, and a chart of it."""
        judged = [(item.candidate.origin["entrant"], item.quality) for item in self._judged if item.done]
        values: list[Json] = [["quality", name, quality] for name, quality in judged]
        subtitle = f"{len(values)} entrants"
        chart: dict[str, Json] = {
            "title": "Quality of the entrants", "subtitle": subtitle, "unit": "quality", "lines": False,
            "values": values,
        }  # fmt: skip
        return {"study": self._rows, "chart": chart}

    def _entry(self, entrant: Entrant, target: float | None) -> Candidate:
        if entrant.scaled is None or target is None:
            arch = parse_architecture(dict(entrant.architecture), what=f"entrant '{entrant.name}'")
            return Candidate(architecture=arch, cost=self._prices(arch), origin={"entrant": entrant.name})
        best: Candidate | None = None
        for factor, arch in _scalings(entrant, entrant.scaled):
            try:
                cost = self._prices(arch)
            except (InvalidArchitecture, MissingCost):
                continue  # e.g. a width that the block cannot divide
            if best is None or abs(cost - target) <= abs(best.cost - target):
                best = Candidate(
                    architecture=arch, cost=cost, origin={"entrant": entrant.name, "factor": factor}
                )
            if cost >= target:
                break
        if best is None:
            raise SearchProblem(
                f"entrant '{entrant.name}': no factor up to {MOST} gives a network that can be built and priced; "
                "use larger images, or a cost that covers it."
            )
        return best


def _scalings(entrant: Entrant, field: str) -> Iterator[tuple[int, Architecture]]:
    """Yield the entrant with the integers of `field` times 1, 2, 3 and so on."""
    for factor in range(1, MOST + 1):
        document = json.loads(json.dumps(dict(entrant.architecture)))
        body = document.get("architecture", {})
        if not isinstance(body.get(field), list):
            raise SearchProblem(f"entrant '{entrant.name}': '{field}' is no list of its architecture.")
        body[field] = [factor * value for value in body[field]]
        try:
            yield factor, parse_architecture(document, what=f"entrant '{entrant.name}'")
        except InvalidArchitecture:
            continue

"""Several strategies on one problem, one after the other: who finds better architectures with equal trials?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from segtailor.core.codec import Json, from_json
from segtailor.core.job import Job
from segtailor.core.registry import STRATEGIES
from segtailor.core.strategy import AskTell, Candidate, Judged, Problem, SearchProblem
from segtailor.strategies.candidates import ArchitecturePrices
from segtailor.strategies.trial_strategy import Halving, TrialStrategy, check_trials
from segtailor.strategies.trials import TrialSearch

PERIODS = 4  # points of the chart


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A strategy by its registered name, with settings that differ from its defaults."""

    name: str
    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def build(self) -> TrialStrategy:
        """Return the strategy."""
        what = f"settings of contender '{self.name}'"
        found: Any = from_json(STRATEGIES.get(self.kind), dict(self.settings), what=what)
        if not hasattr(found, "begin"):
            raise SearchProblem(
                f"contender '{self.name}': strategy '{self.kind}' makes no trials to compare."
            )
        strategy: TrialStrategy = found
        return strategy


@STRATEGIES.register("contest")
@dataclass(frozen=True, kw_only=True)
class Contest:
    """Let each contender search in turn; all are judged by the same evaluator."""

    contenders: tuple[Contender, ...] = ()
    halving: Halving | None = None

    def check(self, problem: Problem) -> None:
        """Refuse a contest of nobody, and contenders that cannot work."""
        check_trials(problem)
        if not self.contenders:
            raise SearchProblem(
                "a contest needs contenders; use a recipe that has some, e.g. auxcells-rewards."
            )
        for contender in self.contenders:
            contender.build().check(problem)

    def job(self, problem: Problem) -> Job:
        """Return the search as a job."""
        return TrialSearch(self, problem)

    def begin(self, problem: Problem, prices: ArchitecturePrices) -> ContestState:
        """Return a fresh state."""
        return ContestState(self, problem, prices)


class ContestState:
    """The states of all contenders, and whose turn it is."""

    def __init__(self, settings: Contest, problem: Problem, prices: ArchitecturePrices) -> None:
        self._names = [contender.name for contender in settings.contenders]
        self._states: list[AskTell] = [
            contender.build().begin(problem, prices) for contender in settings.contenders
        ]
        counts = [state.expected for state in self._states]
        self.expected: int | None = None if None in counts else sum(count or 0 for count in counts)
        self._score = problem.objective.score
        self._turn = 0
        self._judged: list[list[Judged]] = [[] for _ in self._names]

    def ask(self) -> Sequence[Candidate]:
        """Return the next batch of the contender whose turn it is."""
        while self._turn < len(self._states):
            name = self._names[self._turn]
            if batch := self._states[self._turn].ask():
                return [replace(item, origin={**item.origin, "contender": name}) for item in batch]
            self._turn += 1
        return ()

    def tell(self, judged: Sequence[Judged]) -> None:
        """Pass the results on."""
        self._judged[self._turn] += judged
        self._states[self._turn].tell(judged)

    def summary(self) -> Mapping[str, Json]:
        """Return the best and the mean of each contender, and a chart of the means over time."""
        rows: list[Json] = []
        points: list[Json] = []
        for name, judged in zip(self._names, self._judged, strict=True):
            done = [item for item in judged if item.done]
            if not done:
                continue
            best = max(done, key=lambda item: float(self._score(item.quality, item.cost)))
            values = [item.quality for item in judged if item.result.quality is not None]
            row: dict[str, Json] = {
                "entrant": name,
                "trial": best.result.id,
                "quality": best.quality,
                "cost": best.cost,
                "mean": sum(values) / len(values),
                "qualities": list(values),
            }
            rows.append(row)
            points += [[name, label, mean] for label, mean in _periods(values)]
        title = "Mean quality of the architectures tried, as the search goes on"
        chart: dict[str, Json] = {
            "title": title, "subtitle": "quarters of each search", "unit": "quality", "lines": True,
            "values": points,
        }  # fmt: skip
        return {"study": rows, "chart": chart}


def _periods(values: Sequence[float]) -> list[tuple[str, float]]:
    """Return the mean of each quarter of a search."""
    size = max(1, -(-len(values) // PERIODS))
    parts = [values[start : start + size] for start in range(0, len(values), size)]
    return [(f"Q{number}", sum(part) / len(part)) for number, part in enumerate(parts, start=1)]

"""The same random architectures judged in several ways: what is each trick worth, and do the judges agree?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from random import Random
from statistics import fmean
from typing import Any, Literal

from segtailor.core.codec import Json
from segtailor.core.job import Job
from segtailor.core.statistics import spearman
from segtailor.core.strategy import STRATEGIES, Candidate, Judged, Problem, SearchProblem
from segtailor.core.trust import refuse_reach
from segtailor.search.draws import Draws
from segtailor.search.halving import Halving
from segtailor.search.prices import Prices
from segtailor.search.trial_strategy import all_failed, check_at_least, check_trials
from segtailor.search.trials import TrialSearch

FIXED = {"data", "cache"}  # settings of every evaluator that no variant may change
REACHING = {
    "teacher",
    "encoder_weights",
}  # settings of evaluators that may name code, or weights kept elsewhere


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A way of judging: nested settings of the evaluator that differ.

    It is left out where the evaluator's setting at the dotted path `needs` is null, e.g. without a teacher.
    """

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    needs: str | None = None


@STRATEGIES.register("ablation")
@dataclass(frozen=True, kw_only=True)
class Ablation:
    """Judge random architectures once per variant, with the same seeds. `chart` is what the plot shows."""

    variants: tuple[Variant, ...] = ()
    architectures: int = 6
    chart: Literal["means", "ranks"] = "means"
    halving: Halving | None = None

    def __post_init__(self) -> None:
        check_at_least("architectures", self.architectures, 1)

    def check(self, problem: Problem) -> None:
        """Refuse an ablation of nothing, and variants that would change more than how candidates are judged."""
        check_trials(problem)
        for variant in self.variants:
            if FIXED & set(variant.changes):
                raise SearchProblem(
                    f"variant '{variant.name}' changes where trials read and write ({', '.join(sorted(FIXED))}); leave "
                    "that out: all variants are judged on the same data."
                )
            for name in sorted(REACHING & _names(variant.changes)):
                refuse_reach(f"set '{name}' in variant '{variant.name}'", trusted=problem.trusted)
        if not self.variants:
            raise SearchProblem(
                "an ablation needs variants; use a recipe that has some, e.g. auxcells-tricks."
            )

    def job(self, problem: Problem) -> Job:
        """Return the search as a job."""
        return TrialSearch(self, problem)

    def begin(self, problem: Problem, prices: Prices) -> AblationState:
        """Return a fresh state."""
        return AblationState(self, problem, prices)


class AblationState:
    """One batch with everything; the table of variants at the end."""

    def __init__(self, settings: Ablation, problem: Problem, prices: Prices) -> None:
        self._settings = settings
        self._draws = Draws(problem, prices, Random(problem.seed))
        known = problem.evaluator.settings if problem.evaluator is not None else {}
        self._variants = [item for item in settings.variants if _at(known, item.needs)]
        self.expected: int | None = settings.architectures * len(self._variants)
        self._asked = False
        self._judged: dict[str, list[Judged]] = {}

    def ask(self) -> Sequence[Candidate]:
        """Return every architecture in every variant."""
        if self._asked:
            return ()
        self._asked = True
        drawn = self._draws.several(self._settings.architectures)
        self.expected = len(drawn) * len(self._variants)
        return [
            replace(item, origin={"variant": variant.name}, evaluator=variant.changes)
            for variant in self._variants
            for item in drawn
        ]

    def tell(self, judged: Sequence[Judged]) -> None:
        """Sort results by variant."""
        if not any(item.done for item in judged):
            raise all_failed(judged, "trials")
        for item in judged:
            self._judged.setdefault(str(item.candidate.origin["variant"]), []).append(item)

    def summary(self) -> Mapping[str, Json]:
        """Return means and rank correlations, and the chart."""
        columns = self._columns()
        rows: list[Json] = []
        for name, judged in self._judged.items():
            done = [item for item in judged if item.done]
            if done:
                best = max(done, key=lambda item: item.quality)
                row: dict[str, Json] = {
                    "entrant": name,
                    "trial": best.result.id,
                    "quality": fmean(item.quality for item in done),
                    "cost": fmean(item.cost for item in done),
                    "architectures": len(done),
                }
                rows.append(row)
        ranks: dict[str, Json] = {
            f"{one} / {other}": spearman(*_paired(columns[one], columns[other]))
            for one, other in combinations(columns, 2)
            if columns[one] != columns[other]  # a stage that two variants share says nothing
        }
        return {"study": rows, "ranks": ranks, "chart": self._chart(columns, ranks)}

    def _columns(self) -> dict[str, dict[str, float]]:
        """Return the rewards of every stage of every variant by architecture."""
        columns: dict[str, dict[str, float]] = {}
        for name, judged in self._judged.items():
            for item in judged:
                values = (
                    dict(item.result.metrics)
                    if "stage1" in item.result.metrics
                    else {"quality": item.quality}
                )
                key = str(item.candidate.architecture)
                for metric in ("stage1", "stage2", "quality"):
                    if metric in values and item.result.quality is not None:
                        columns.setdefault(f"{name} {metric}", {})[key] = values[metric]
        return columns

    def _chart(self, columns: Mapping[str, Mapping[str, float]], ranks: Mapping[str, Json]) -> Json:
        count = self._settings.architectures
        if self._settings.chart == "ranks":
            short = {key.replace(" stage", " "): value for key, value in ranks.items() if value is not None}
            values: list[Json] = [["Spearman", key, value] for key, value in short.items()]
            title, unit = "Do the judges agree on the order of architectures?", "rank corr."
        else:
            values = [
                [*reversed(key.rsplit(" ", 1)), fmean(column.values())] for key, column in columns.items()
            ]
            title, unit = "What each way of judging makes of the same architectures", "reward"
        subtitle = f"{count} random architectures, the same seeds"
        return {"title": title, "subtitle": subtitle, "unit": unit, "lines": False, "values": values}


def _paired(one: Mapping[str, float], other: Mapping[str, float]) -> tuple[list[float], list[float]]:
    both = [key for key in one if key in other]
    return [one[key] for key in both], [other[key] for key in both]


def _at(settings: Mapping[str, Any], path: str | None) -> bool:
    """Tell whether a dotted path leads to something."""
    place: Any = settings
    for name in path.split(".") if path else ():
        place = place.get(name) if isinstance(place, Mapping) else None
    return place is not None


def _names(changes: Any) -> set[str]:
    """Return the names of settings at any depth."""
    if not isinstance(changes, Mapping):
        return set()
    return set(changes).union(*(_names(value) for value in changes.values()))

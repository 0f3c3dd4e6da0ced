"""Three strategies that compare instead of searching, for the studies of papers.

`Study` judges a given list of architectures, if wanted each scaled to the same cost. `Contest` lets several strategies
search one after the other. `Ablation` judges the same random architectures with several settings of the evaluator. The
result of each has a table (`study`) and a chart. They are no part of the package: call `register` before a recipe with
one of them is run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from random import Random
from statistics import fmean
from typing import Annotated, Any, Literal

from segtailor.core.codec import Json, Tagged
from segtailor.core.errors import InvalidArchitecture, MissingCost
from segtailor.core.job import Job
from segtailor.core.registry import STRATEGIES
from segtailor.core.space import Architecture, AsDocument
from segtailor.core.statistics import spearman
from segtailor.core.strategy import AskTell, Candidate, Judged, Problem, SearchProblem, Strategy
from segtailor.core.trust import refuse_reach
from segtailor.strategies.candidates import ArchitecturePrices, Draws
from segtailor.strategies.trial_strategy import Halving, all_failed, check_at_least, check_trials
from segtailor.strategies.trials import TrialSearch

MAX_FACTOR = 256  # the largest factor that a field of an entrant is scaled by
CHART_PERIODS = 4  # points of a contest's chart: means over quarters of each search
FIXED_SETTINGS = {"data", "cache"}  # of every evaluator: no variant may change them
REACHING_SETTINGS = {"teacher", "encoder_weights"}  # may name code, or weights of another folder


def register() -> None:
    """Give the strategies their names, so that recipes with them can be written and read."""
    for name, strategy in (("study", Study), ("contest", Contest), ("ablation", Ablation)):
        if name not in STRATEGIES:
            STRATEGIES.add(name, strategy)


# A given list of architectures


@dataclass(frozen=True, kw_only=True)
class Entrant:
    """One architecture of a study; `scaled` names its field of integers that is multiplied to match the cost."""

    name: str
    architecture: Annotated[Architecture, AsDocument()]
    scaled: str | None = None


@dataclass(frozen=True, kw_only=True)
class Study:
    """Judge a given list of architectures, each scaled to the cost of `match` if that is given."""

    entrants: tuple[Entrant, ...] = ()
    match: Annotated[Architecture, AsDocument()] | None = None
    halving: Halving | None = None

    def check(self, problem: Problem) -> None:
        """Refuse a study without entrants."""
        check_trials(problem)
        if not self.entrants:
            raise SearchProblem("a study needs entrants; give at least one architecture.")

    def job(self, problem: Problem) -> Job:
        """Return the search as a job."""
        return TrialSearch(self, problem)

    def begin(self, problem: Problem, prices: ArchitecturePrices) -> StudyState:
        """Return a new state."""
        return StudyState(self, problem, prices)


class StudyState:
    """One batch with all entrants, and their table at the end."""

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
        match = self._settings.match
        wanted_cost = None if match is None else self._prices(match)
        candidates = [self._candidate(entrant, wanted_cost) for entrant in self._settings.entrants]
        limit = self._problem.limit
        batch = [item for item in candidates if limit is None or item.cost <= limit]
        if not batch:
            unit, least = self._problem.cost.unit, min(item.cost for item in candidates)
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
        """Return the table of entrants and its chart."""
        values: list[Json] = [
            ["quality", item.candidate.origin["entrant"], item.quality] for item in self._judged if item.done
        ]
        title, subtitle = "Quality of the entrants", f"{len(values)} entrants"
        return {"study": self._rows, "chart": _chart(title, subtitle, "quality", values)}

    def _candidate(self, entrant: Entrant, wanted_cost: float | None) -> Candidate:
        """Return the entrant as it is, or scaled so that its cost is closest to the wanted one."""
        if entrant.scaled is None or wanted_cost is None:
            arch = entrant.architecture
            return Candidate(architecture=arch, cost=self._prices(arch), origin={"entrant": entrant.name})
        best: Candidate | None = None
        for factor, arch in _scalings(entrant, entrant.scaled):
            try:
                cost = self._prices(arch)
            except (InvalidArchitecture, MissingCost):
                continue  # e.g. a width that the block cannot divide
            if best is None or abs(cost - wanted_cost) <= abs(best.cost - wanted_cost):
                best = Candidate(
                    architecture=arch, cost=cost, origin={"entrant": entrant.name, "factor": factor}
                )
            if cost >= wanted_cost:
                break
        if best is None:
            raise SearchProblem(
                f"entrant '{entrant.name}': no factor up to {MAX_FACTOR} gives a network that can be built and "
                "priced; use larger images, or a cost that covers it."
            )
        return best


def _scalings(entrant: Entrant, field_name: str) -> Iterator[tuple[int, Architecture]]:
    """Yield the entrant with the integers of a field times 1, 2, 3 and so on."""
    arch: Any = entrant.architecture
    values = getattr(arch, field_name, None)
    if not isinstance(values, tuple):
        raise SearchProblem(f"entrant '{entrant.name}': '{field_name}' is no list of its architecture.")
    for factor in range(1, MAX_FACTOR + 1):
        try:
            scaled = replace(arch, **{field_name: tuple(factor * value for value in values)})
        except InvalidArchitecture:
            continue
        yield factor, scaled


# Several strategies, one after the other


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A strategy of a contest; it must work by trials."""

    name: str
    strategy: Annotated[Strategy, Tagged(STRATEGIES)]

    def begin(self, problem: Problem, prices: ArchitecturePrices) -> AskTell:
        """Return the new state of the strategy."""
        state: AskTell = self.strategy.begin(problem, prices)  # type: ignore[attr-defined]
        return state


@dataclass(frozen=True, kw_only=True)
class Contest:
    """Let each contender search in turn; all are judged by the same evaluator."""

    contenders: tuple[Contender, ...] = ()
    halving: Halving | None = None

    def check(self, problem: Problem) -> None:
        """Refuse a contest without contenders, and contenders that cannot work."""
        check_trials(problem)
        if not self.contenders:
            raise SearchProblem("a contest needs contenders; give at least one strategy.")
        for contender in self.contenders:
            if not hasattr(contender.strategy, "begin"):
                kind = STRATEGIES.name_of(type(contender.strategy))
                raise SearchProblem(
                    f"contender '{contender.name}': strategy '{kind}' makes no trials to compare."
                )
            contender.strategy.check(problem)

    def job(self, problem: Problem) -> Job:
        """Return the search as a job."""
        return TrialSearch(self, problem)

    def begin(self, problem: Problem, prices: ArchitecturePrices) -> ContestState:
        """Return a new state."""
        return ContestState(self, problem, prices)


class ContestState:
    """The states of all contenders, and whose turn it is."""

    def __init__(self, settings: Contest, problem: Problem, prices: ArchitecturePrices) -> None:
        self._names = [contender.name for contender in settings.contenders]
        self._states = [contender.begin(problem, prices) for contender in settings.contenders]
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
            points += [[name, label, mean] for label, mean in _means_over_time(values)]
        title = "Mean quality of the architectures tried, as the search goes on"
        chart = _chart(title, "quarters of each search", "quality", points, lines=True)
        return {"study": rows, "chart": chart}


def _means_over_time(values: Sequence[float]) -> list[tuple[str, float]]:
    """Return the mean of each quarter of a search."""
    size = max(1, -(-len(values) // CHART_PERIODS))
    parts = [values[start : start + size] for start in range(0, len(values), size)]
    return [(f"Q{number}", sum(part) / len(part)) for number, part in enumerate(parts, start=1)]


# The same architectures, judged in several ways


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A way of judging: nested settings of the evaluator that differ.

    It is left out if the evaluator's setting at the dotted path `needs` is null, e.g. without a teacher.
    """

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    needs: str | None = None


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
        """Refuse an ablation without variants, and variants that change more than how candidates are judged."""
        check_trials(problem)
        for variant in self.variants:
            if FIXED_SETTINGS & set(variant.changes):
                raise SearchProblem(
                    f"variant '{variant.name}' changes where trials read and write "
                    f"({', '.join(sorted(FIXED_SETTINGS))}); leave that out: all variants are judged on the same data."
                )
            for name in sorted(REACHING_SETTINGS & _names(variant.changes)):
                refuse_reach(f"set '{name}' in variant '{variant.name}'", trusted=problem.trusted)
        if not self.variants:
            raise SearchProblem("an ablation needs variants; give at least one.")

    def job(self, problem: Problem) -> Job:
        """Return the search as a job."""
        return TrialSearch(self, problem)

    def begin(self, problem: Problem, prices: ArchitecturePrices) -> AblationState:
        """Return a new state."""
        return AblationState(self, problem, prices)


class AblationState:
    """One batch with every architecture in every variant, and the table of variants at the end."""

    def __init__(self, settings: Ablation, problem: Problem, prices: ArchitecturePrices) -> None:
        self._settings = settings
        self._draws = Draws(problem, prices, Random(problem.seed))
        evaluator = problem.evaluator.settings if problem.evaluator is not None else {}
        self._variants = [item for item in settings.variants if _is_set(evaluator, item.needs)]
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
            if columns[one] != columns[other]  # a stage that two variants share has the same values
        }
        return {"study": rows, "ranks": ranks, "chart": self._drawn(columns, ranks)}

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

    def _drawn(self, columns: Mapping[str, Mapping[str, float]], ranks: Mapping[str, Json]) -> Json:
        subtitle = f"{self._settings.architectures} random architectures, the same seeds"
        if self._settings.chart == "ranks":
            values: list[Json] = [
                ["Spearman", key.replace(" stage", " "), value]
                for key, value in ranks.items()
                if value is not None
            ]
            title = "Do the judges agree on the order of architectures?"
            return _chart(title, subtitle, "rank corr.", values)
        values = [[*reversed(key.rsplit(" ", 1)), fmean(column.values())] for key, column in columns.items()]
        return _chart("What each way of judging makes of the same architectures", subtitle, "reward", values)


def _paired(one: Mapping[str, float], other: Mapping[str, float]) -> tuple[list[float], list[float]]:
    """Return the values of the keys that both have."""
    both = [key for key in one if key in other]
    return [one[key] for key in both], [other[key] for key in both]


def _is_set(settings: Mapping[str, Any], path: str | None) -> bool:
    """Tell whether the setting at a dotted path is not null; no path counts as set."""
    value: Any = settings
    for name in path.split(".") if path else ():
        value = value.get(name) if isinstance(value, Mapping) else None
    return value is not None


def _names(changes: Any) -> set[str]:
    """Return the names of settings at any depth."""
    if not isinstance(changes, Mapping):
        return set()
    return set(changes).union(*(_names(value) for value in changes.values()))


def _chart(title: str, subtitle: str, unit: str, values: list[Json], *, lines: bool = False) -> Json:
    """Return a chart as it is stored in a result; values are series, label and number."""
    return {"title": title, "subtitle": subtitle, "unit": unit, "lines": lines, "values": values}

"""Several runs on one page: figures, settings that differ, and their curves and fronts in common plots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from segtailor.core.errors import UserError
from segtailor.core.plan import count
from segtailor.core.task import KIND_FACTS
from segtailor.report.document import Chart, Front, Report, Series
from segtailor.report.fields import at, flat, number
from segtailor.report.folder import open_run
from segtailor.report.of_search import unit_of
from segtailor.report.reading import report_of

State: TypeAlias = Literal["differs", "same", "partial"]
MIN_RUNS, MAX_RUNS = 2, 24
HEADLINES = tuple((facts.headline.name,) for facts in KIND_FACTS.values())
QUALITIES = (*HEADLINES, ("quality",))  # paths of keys in results of different kinds
COSTS = (("latency_ms",), ("cost",))


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One run of a comparison; figures that it does not have are None."""

    name: str
    kind: str
    status: str
    report: Report
    settings: dict[str, str]
    quality: float | None = None
    cost: float | None = None
    unit: str = ""
    params: int | None = None
    seconds: float | None = None
    seed: str = ""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting in all runs; the value is None where a run does not have it."""

    name: str
    values: tuple[str | None, ...]

    @property
    def state(self) -> State:
        """Whether the values differ, are the same, or exist in some runs only."""
        if None in self.values:
            return "partial"
        return "same" if len(set(self.values)) == 1 else "differs"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A page about several runs."""

    title: str
    subtitle: str
    runs: tuple[Compared, ...]

    def settings(self, state: State) -> list[Setting]:
        """Return the settings that differ, are the same, or exist in some runs only."""
        names = dict.fromkeys(name for run in self.runs for name in run.settings)
        settings = [
            Setting(name=name, values=tuple(run.settings.get(name) for run in self.runs)) for name in names
        ]
        return [setting for setting in settings if setting.state == state]

    def best(self) -> Compared | None:
        """Return the run of the highest quality, where at least two have one."""
        known = [run for run in self.runs if run.quality is not None]
        return max(known, key=lambda run: run.quality or 0.0) if len(known) > 1 else None

    def charts(self) -> list[Chart]:
        """Return the curves that runs have in common by title, one series per run."""
        by_title: dict[str, list[tuple[str, Chart]]] = {}
        for run in self.runs:
            charts = (*run.report.training, *(run.report.search.charts if run.report.search else ()))
            for chart in charts:
                by_title.setdefault(chart.title, []).append((run.name, chart))
        return [_overlaid(charts) for charts in by_title.values() if len(charts) > 1]

    def fronts(self) -> list[Front]:
        """Return the fronts; those with the same cost share a plot."""
        by_cost: dict[tuple[str, str], list[tuple[str, Front]]] = {}
        for run in self.runs:
            front = run.report.front
            if front is not None:
                by_cost.setdefault((front.unit, front.cost_name), []).append((run.name, front))
        return [_merged(fronts) for fronts in by_cost.values()]

    def sections(self) -> list[tuple[str, str]]:
        """Return id and name of the sections of the page."""
        all_sections = (
            ("runs", "Runs", True),
            ("settings", "Settings", True),
            ("front", "Quality against cost", bool(self.fronts())),
            ("curves", "Curves", bool(self.charts())),
        )
        return [(section, name) for section, name, exists in all_sections if exists]


def compare(folders: Sequence[Path]) -> Comparison:
    """Read several runs; each must be a run directory, finished or not."""
    if not MIN_RUNS <= len(folders) <= MAX_RUNS:
        raise UserError(
            f"{len(folders)} runs cannot be compared on one page; give {MIN_RUNS} to {MAX_RUNS} run directories."
        )
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise UserError("the same run was given twice; give each once.")
    names = short_names(folders)
    runs = tuple(_compared(folder, name) for folder, name in zip(folders, names, strict=True))
    kinds = ", ".join(dict.fromkeys(run.kind for run in runs))
    return Comparison(title=f"{len(runs)} runs compared", subtitle=kinds, runs=runs)


def short_names(folders: Sequence[Path]) -> list[str]:
    """Return the ends of the paths, just long enough to be different."""
    parts = [folder.resolve().parts for folder in folders]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def _compared(folder: Path, name: str) -> Compared:
    run, report = open_run(folder), report_of(folder)
    cost = next((value for path in COSTS if (value := number(run.result, *path)) is not None), None)
    quality = next((value for path in QUALITIES if (value := number(run.result, *path)) is not None), None)
    seed = at(run.recipe, "seed") if "seed" in run.recipe else at(run.recipe, "fit", "seed")
    return Compared(
        name=name,
        kind=run.kind,
        status=run.status,
        report=report,
        settings=dict(flat({key: value for key, value in run.recipe.items() if key != "kind"})),
        quality=quality,
        cost=cost,
        unit=unit_of(run) if "cost" in run.result else "ms",
        params=count(report.networks[0].plan).params if report.networks else None,
        seconds=run.seconds,
        seed="" if seed is None else str(seed),
    )


def _overlaid(charts: Sequence[tuple[str, Chart]]) -> Chart:
    """Return one chart with the series of all; a chart of one series gives it the name of its run."""
    series: list[Series] = []
    for name, chart in charts:
        for one in chart.series:
            series.append(replace(one, name=name if len(chart.series) == 1 else f"{name}: {one.name}"))
    return replace(charts[0][1], series=tuple(series))


def _merged(fronts: Sequence[tuple[str, Front]]) -> Front:
    """Return one plot whose groups are the runs; plain trials are shown only for a run that has nothing else."""
    points = []
    for name, front in fronts:
        shown = [point for point in front.points if point.group != "trial"] or list(front.points)
        points += [replace(point, name=f"{name}: {point.name}", group=name) for point in shown]
    budgets = {front.budget for _, front in fronts}
    return replace(
        fronts[0][1],
        points=tuple(points),
        path=(),
        budget=budgets.pop() if len(budgets) == 1 else None,
        note="",
    )

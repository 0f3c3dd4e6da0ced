"""A run directory opened for reading, and what every report takes from it: curves, conditions and commands.

Whatever can be read is read; what cannot is told in `RunFolder.missing`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from segtailor.core.codec import read_json
from segtailor.core.errors import RunProblem, UserError
from segtailor.core.text import command, path_argument
from segtailor.report.document import Chart, Command, Fact, FactGroup, Series, StageSummary
from segtailor.report.fields import flat, number, table, text
from segtailor.runs import Layout, Logged, entries, read_recipe, read_result
from segtailor.runs.journal import read_history

MAX_DAMAGED_LINES = 3  # of the journal that are named one by one
DRAWN_FIELDS = ("kind", "architecture")  # of a recipe, which the report shows elsewhere
LONG_SETTINGS = (  # lists that are not shown; runs of earlier versions have `settings`
    "strategy.entrants",
    "strategy.match",
    "strategy.settings.entrants",
    "strategy.settings.match",
)
COPY_FOLDER = "again"  # where the command that repeats a run puts it


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """What a run directory holds. `result` is empty while the run is not finished."""

    layout: Layout
    recipe: dict[str, Any]
    environment: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    steps: tuple[Logged, ...] = ()
    records: tuple[dict[str, Any], ...] = ()
    seconds: float | None = None
    ended: str = ""
    missing: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """What was run."""
        return text(self.recipe, "kind")

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.layout.root.resolve().name

    @property
    def finished(self) -> bool:
        """Whether there is a result."""
        return bool(self.result)

    @property
    def status(self) -> str:
        """How the run ended: `done`, `failed` or `unfinished`."""
        return "done" if self.finished else "failed" if self.ended.startswith("error") else "unfinished"

    @property
    def progress(self) -> str:
        """How far an unfinished run is."""
        if not self.steps:
            return "it has not begun"
        step = self.steps[-1].step
        total = f" of {step.total}" if step.total else ""
        return f"it is at {step.phase} {step.done}{total}"

    @property
    def main_phase(self) -> str:
        """The phase with the most steps: others, such as a final choice, count their own."""
        phases = [row.step.phase for row in self.steps]
        return max(dict.fromkeys(phases), key=phases.count, default="")

    def curve(
        self, title: str, metrics: Sequence[tuple[str, str]], *, y: str, factor: float = 1.0
    ) -> Chart | None:
        """Return a chart of (metric, name shown) over the steps of the main phase; None where there is no curve."""
        series = []
        for metric, name in metrics:
            points = {
                row.step.done: factor * row.step.metrics[metric]
                for row in self.steps
                if metric in row.step.metrics and row.step.phase == self.main_phase
            }
            if len(points) > 1:
                series.append(Series(name=name, x=tuple(map(float, points)), y=tuple(points.values())))
        return Chart(title=title, x_name="step", y_name=y, series=tuple(series)) if series else None


def open_run(folder: Path) -> RunFolder:
    """Open a run directory; another folder raises, damage inside is told in `missing`."""
    layout = Layout(folder)
    if not folder.is_dir():
        raise RunProblem(f"{folder} is no folder; give a run directory, as written by `segtailor ... --out`.")
    if not layout.recipe.exists():
        raise RunProblem(
            f"{folder} is no run directory: it has no {layout.recipe.name}. Give the folder of --out."
        )
    missing: list[str] = []
    result = _readable(lambda: read_result(folder) or {}, missing)
    environment = _readable(lambda: _environment(layout), missing)
    steps, records = _history(folder, missing)
    seconds, ended = _sessions(layout.journal)
    if not result and not missing:
        missing.append(_unfinished(ended))
    return RunFolder(
        layout=layout,
        recipe=read_recipe(folder),
        environment=environment,
        result=result,
        steps=tuple(steps),
        records=tuple(records),
        seconds=seconds,
        ended=ended,
        missing=tuple(missing),
    )


def present(charts: Iterable[Chart | None]) -> tuple[Chart, ...]:
    """Return the charts that are not None."""
    return tuple(chart for chart in charts if chart is not None)


def conditions(run: RunFolder) -> tuple[FactGroup, ...]:
    """Return machine, versions, seeds and all settings of a run."""
    settings = [
        fact
        for fact in _facts(_without(run.recipe, *DRAWN_FIELDS))
        if not fact.name.startswith(LONG_SETTINGS)
    ]
    groups = (
        ("Machine", _facts(_without(run.environment, "packages"))),
        ("Versions", _facts(table(run.environment, "packages"))),
        ("Seeds", [fact for fact in settings if fact.name.rpartition(".")[2] == "seed"]),
        (f"Settings of {run.kind}", settings),
    )
    return tuple(FactGroup(title=title, facts=tuple(facts)) for title, facts in groups if facts)


def commands(run: RunFolder, *more: Command) -> tuple[Command, ...]:
    """Return the commands that resume an unfinished run, repeat it exactly, and write this page."""
    folder, recipe = path_argument(run.layout.root), path_argument(run.layout.recipe)
    resume = Command(text=command("segtailor", "resume", folder), note="Go on where it stopped:")
    again = Command(
        text=f"mkdir {COPY_FOLDER} && {command('cp', recipe, f'{COPY_FOLDER}/')}\nsegtailor resume {COPY_FOLDER}",
        note="The same work once more, with every setting and seed, in another folder:",
    )
    page = Command(text=command("segtailor", "report", folder), note="This page:")
    return (*(() if run.finished else (resume,)), again, *more, page)


def stage_summary(run: RunFolder) -> StageSummary:
    """Return a run as one stage of a larger one."""
    note = "" if run.finished else run.progress
    return StageSummary(name=f"{run.name} ({run.kind})", status=run.status, seconds=run.seconds, note=note)


def _readable(read: Callable[[], dict[str, Any]], missing: list[str]) -> dict[str, Any]:
    try:
        return read()
    except UserError as problem:
        missing.append(str(problem))
        return {}


def _environment(layout: Layout) -> dict[str, Any]:
    content = read_json(layout.environment, what="environment", error=RunProblem)
    return content if isinstance(content, dict) else {}


def _history(folder: Path, missing: list[str]) -> tuple[list[Logged], list[dict[str, Any]]]:
    damaged: list[str] = []
    try:
        history = read_history(folder, damaged=damaged.append)
    except (TypeError, ValueError, AttributeError, OSError) as problem:
        # Lines that are JSON, but no journal entries.
        journal = Layout(folder).journal
        missing.append(f"the journal {journal} cannot be read ({problem}); curves are left out.")
        return [], []
    missing += damaged[:MAX_DAMAGED_LINES]
    if len(damaged) > MAX_DAMAGED_LINES:
        missing.append(f"{len(damaged) - MAX_DAMAGED_LINES} more lines of the journal are damaged.")
    return history.steps, [dict(record) for record in history.records if isinstance(record, dict)]


def _sessions(journal: Path) -> tuple[float | None, str]:
    """Return the seconds of all sessions together, and how the last one ended."""
    total, begun, last, ended = 0.0, None, None, ""
    for entry in entries(journal, damaged=lambda _: None):
        now = number(entry, "time")
        if entry["kind"] == "start":
            total += _span(begun, last)
            begun, ended = now, ""
        if entry["kind"] in ("interrupt", "error", "end"):
            ended = text(entry, "kind") + (f": {text(entry, 'message')}" if entry.get("message") else "")
        last = now if now is not None else last
    total += _span(begun, last)
    return (total if begun is not None else None), ended


def _span(begun: float | None, last: float | None) -> float:
    return max(0.0, last - begun) if begun is not None and last is not None else 0.0


def _unfinished(ended: str) -> str:
    kind, _, message = ended.partition(": ")
    if kind == "error":
        return f"the run failed: {message}"
    if kind == "interrupt":
        return "the run was interrupted and is not finished; this page shows what it had found by then."
    return "the run is not finished: it still runs, or was killed. This page shows what it had found by then."


def _facts(data: dict[str, Any]) -> list[Fact]:
    return [Fact(name=name, value=value) for name, value in flat(data) if name]


def _without(data: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in names}

"""A run directory opened for reading: whatever can be read of it, and what could not be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from segtailor.core.codec import read_json
from segtailor.core.errors import RunProblem, UserError
from segtailor.report.document import Chart, Series
from segtailor.report.fields import number, text
from segtailor.runs import Layout, Logged, entries, read_recipe, read_result
from segtailor.runs.journal import read_history

SHOWN = 3  # notes about damaged lines


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
    def progress(self) -> str:
        """How far an unfinished run is."""
        if not self.steps:
            return "it has not begun"
        step = self.steps[-1].step
        total = f" of {step.total}" if step.total else ""
        return f"it is at {step.phase} {step.done}{total}"

    def curve(
        self, title: str, metrics: Sequence[tuple[str, str]], *, y: str, factor: float = 1.0
    ) -> Chart | None:
        """Return a chart of (metric, name shown) over the steps of the main phase; nothing where there is no curve."""
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

    @property
    def main_phase(self) -> str:
        """The phase that has most steps: others, such as a final choice, count their own."""
        phases = [row.step.phase for row in self.steps]
        return max(dict.fromkeys(phases), key=phases.count, default="")


def open_run(folder: Path) -> RunFolder:
    """Open a run directory; one that is none raises, damage inside is noted under `missing`."""
    layout = Layout(folder)
    if not folder.is_dir():
        raise RunProblem(f"{folder} is no folder; give a run directory, as written by `segtailor ... --out`.")
    if not layout.recipe.exists():
        raise RunProblem(
            f"{folder} is no run directory: it has no {layout.recipe.name}. Give the folder of --out."
        )
    missing: list[str] = []
    result = _kept(lambda: read_result(folder) or {}, missing)
    environment = _kept(lambda: _environment(layout), missing)
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


def _kept(read: Any, missing: list[str]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = read()
    except UserError as problem:
        missing.append(str(problem))
        return {}
    return found


def _environment(layout: Layout) -> dict[str, Any]:
    found = read_json(layout.environment, what="environment", error=RunProblem)
    return found if isinstance(found, dict) else {}


def _history(folder: Path, missing: list[str]) -> tuple[list[Logged], list[dict[str, Any]]]:
    damaged: list[str] = []
    try:
        history = read_history(folder, damaged=damaged.append)
    except (
        TypeError,
        ValueError,
        AttributeError,
        OSError,
    ) as problem:  # lines that are JSON, but no entries of ours
        missing.append(
            f"the journal {Layout(folder).journal} cannot be read ({problem}); curves are left out."
        )
        return [], []
    missing += damaged[:SHOWN]
    if len(damaged) > SHOWN:
        missing.append(f"{len(damaged) - SHOWN} more lines of the journal are damaged.")
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
        return "the run was interrupted and is not finished; what follows is what it had found by then."
    return "the run is not finished: it is still going on, or was killed. What follows is what it had found by then."


def present(charts: Iterable[Chart | None]) -> tuple[Chart, ...]:
    """Return the charts that there are."""
    return tuple(chart for chart in charts if chart is not None)

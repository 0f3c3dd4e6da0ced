"""What a run directory says: for `resume`, for reports, for anyone; nothing here writes or locks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from segtailor.core.codec import Json, canonical, read_json
from segtailor.core.errors import RunProblem
from segtailor.core.job import Step
from segtailor.runs.journal import entries
from segtailor.runs.layout import Layout


@dataclass(frozen=True, kw_only=True)
class Logged:
    """A step as the journal holds it: its number in the run, counted from 1, and when it was written."""

    number: int
    time: float
    step: Step


@dataclass(kw_only=True)
class History:
    """The valid steps of a run in order, all records, and whether a checkpoint was ever saved.

    A step that a session repeats is void, but its records stay: they are results, not progress.
    """

    steps: list[Logged] = field(default_factory=list)
    records: list[Mapping[str, Json]] = field(default_factory=list)
    saved: bool = False

    def void(self, after: int) -> None:
        """Forget the steps with a number greater than `after`: a session repeats them."""
        while self.steps and self.steps[-1].number > after:
            self.steps.pop()


def read_recipe(folder: Path) -> dict[str, Json]:
    """Return the recipe of a run."""
    return _object(Layout(folder).recipe, what="recipe")


def read_result(folder: Path) -> dict[str, Json] | None:
    """Return the result of a finished run, nothing for one that is not finished."""
    path = Layout(folder).result
    return _object(path, what="result") if path.exists() else None


def read_environment(folder: Path) -> dict[str, Json]:
    """Return the environment that a run began in."""
    return _object(Layout(folder).environment, what="environment")


def read_steps(folder: Path) -> list[Logged]:
    """Return the steps of a run, each once and in order, also when sessions repeated some of them."""
    return read_history(folder).steps


def read_history(folder: Path, *, damaged: Callable[[str], None] | None = None) -> History:
    """Read the journal of a run; `damaged` is told of unreadable lines, which raise without it."""
    history = History()
    for entry in entries(Layout(folder).journal, damaged=damaged):
        if entry["kind"] == "start":
            history.void(_number(entry))
        elif entry["kind"] == "step":
            history.void(_number(entry) - 1)
            logged = _logged(entry)
            history.steps.append(logged)
            history.records += logged.step.records
        elif entry["kind"] == "checkpoint":
            history.saved = True
    return history


def _object(path: Path, *, what: str) -> dict[str, Json]:
    data = read_json(path, what=what, error=RunProblem)
    if not isinstance(data, dict):
        raise RunProblem(f"{what} {path} is no JSON object; restore the file or start in another folder.")
    try:
        canonical(data)
    except ValueError:
        raise RunProblem(
            f"{what} {path} holds numbers that are not finite; restore the file or start in another folder."
        ) from None
    return data


def _number(entry: dict[str, Any]) -> int:
    return int(entry.get("step", 0))


def _logged(entry: dict[str, Any]) -> Logged:
    metrics = entry.get("metrics", {})
    step = Step(
        phase=entry.get("phase", ""),
        done=entry.get("done", 0),
        total=entry.get("total"),
        metrics={name: math.nan if value is None else float(value) for name, value in metrics.items()},
        best=entry.get("best", {}),
        message=entry.get("message"),
        records=tuple(entry.get("records", ())),
    )
    return Logged(number=_number(entry), time=float(entry.get("time", 0)), step=step)

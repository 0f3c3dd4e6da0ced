"""One session of a run: from a start or resume until it ends. It alone writes while a job runs."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

from segtailor.core.atomic import strict, write_json
from segtailor.core.codec import Json
from segtailor.core.job import Job, Retellable, Step
from segtailor.runs.checkpoint import Checkpoints
from segtailor.runs.display import Display
from segtailor.runs.events import Events, events
from segtailor.runs.journal import Journal
from segtailor.runs.layout import Layout
from segtailor.runs.reading import History, Logged


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What is kept of a run and how often it is saved, besides where the job asks for it."""

    every_seconds: float = 300.0
    every_steps: int | None = None
    keep: int = 2
    tensorboard: bool = True


class Session:
    """Journals, shows and saves the steps of a job; `number` counts them over all sessions of the run."""

    def __init__(
        self, job: Job, layout: Layout, *, journal: Journal, display: Display, policy: Policy
    ) -> None:
        self.number = 0
        self.saved = 0  # the number of the step that the newest checkpoint holds
        self.job = job
        self._layout = layout
        self._journal = journal
        self._display = display
        self._policy = policy
        self._checkpoints = Checkpoints(folder=layout.checkpoints, keep=policy.keep)
        self._events: Events | None = None
        self._last: Step | None = None
        self._time_saved = time.monotonic()

    def begin(self, history: History) -> None:
        """Restore the newest checkpoint, if any, and what was recorded since; journal the start."""
        self.number = self.saved = self._checkpoints.load(self.job, warn=self.note, promised=history.saved)
        if isinstance(self.job, Retellable) and history.records:
            self.job.retell(history.records)
        self._journal.append("start", step=self.number, pid=os.getpid())
        history.void(self.number)
        if self._policy.tensorboard:
            self._events = events(self._layout.events, history.steps)
        if history.steps:
            self._last = history.steps[-1].step
        if self.number:
            self._display.message(f"resumed at {self.progress}")

    @property
    def progress(self) -> str:
        """How far the job is, as displays show it, e.g. `train 31/48`."""
        if self._last is None:
            return "the start"
        total = "" if self._last.total is None else f"/{self._last.total}"
        return f"{self._last.phase} {self._last.done}{total}"

    def record(self, step: Step, last: bool) -> None:
        """Journal and show a step, and save when it is time or this is the last one of the session."""
        self.number += 1
        self._last = step
        self._journal.append("step", step=self.number, **_fields(step))
        if self._events is not None:
            self._events.add(Logged(number=self.number, time=time.time(), step=step))
        self._display.step(step)
        if last or step.checkpoint or self._due():
            self.save()

    def save(self) -> None:
        """Save the state after the last step, unless that was done."""
        if self.saved == self.number:
            return
        self._checkpoints.save(self.job, self.number)
        self.saved = self.number
        self._time_saved = time.monotonic()
        self._journal.append("checkpoint", step=self.number)
        self._journal.sync()

    def note(self, message: str) -> None:
        """Tell the user and the journal."""
        self._display.message(message)
        self._journal.append("note", message=message)

    def finish(self) -> dict[str, Json]:
        """Write the result, which makes the run finished."""
        result: Mapping[str, Json] = strict(self.job.result())
        write_json(self._layout.result, result, what="result")
        self._journal.append("end", step=self.number)
        return dict(result)

    def close(self) -> None:
        """Flush the event view."""
        if self._events is not None:
            self._events.close()

    def _due(self) -> bool:
        if self._policy.every_steps is not None and self.number - self.saved >= self._policy.every_steps:
            return True
        return time.monotonic() - self._time_saved >= self._policy.every_seconds


def _fields(step: Step) -> dict[str, Json]:
    records: dict[str, Json] = {"records": [dict(record) for record in step.records]} if step.records else {}
    return records | {
        "phase": step.phase,
        "done": step.done,
        "total": step.total,
        "metrics": {name: float(value) for name, value in step.metrics.items()},
        "best": dict(step.best),
        "message": step.message,
    }

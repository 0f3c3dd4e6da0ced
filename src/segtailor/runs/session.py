"""One session of a run, from a start or resume until it ends. Nothing else writes while a job runs.

Every step goes to the journal, to the display and, where TensorBoard is installed, to its event file. Each session
writes the event file anew from the journal, so that steps are neither repeated nor lost, and a run made without
TensorBoard gets its curves on the next resume. Neither torch nor TensorFlow is needed for that.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from segtailor.core.atomic import strict, write_json
from segtailor.core.codec import Json
from segtailor.core.job import Job, Retellable, Step
from segtailor.core.text import visible
from segtailor.runs.checkpoint import Checkpoints
from segtailor.runs.display import Display
from segtailor.runs.journal import History, Journal, Logged
from segtailor.runs.layout import Layout

EVENT_FILES = "events.out.tfevents.*"  # how TensorBoard names its files
FLUSH_SECONDS = 10  # at most this long until TensorBoard sees a step


@dataclass(frozen=True, kw_only=True)
class Policy:
    """When a run saves checkpoints, besides those that the job asks for, and how many it keeps."""

    every_seconds: float = 300.0
    every_steps: int | None = None
    keep: int = 2
    tensorboard: bool = True  # write an event file, where TensorBoard is installed


class Session:
    """Journals, shows and saves the steps of a job; `number` counts them over all sessions of the run."""

    def __init__(
        self, job: Job, layout: Layout, *, journal: Journal, display: Display, policy: Policy
    ) -> None:
        self.number = 0
        self.saved = 0  # number of the step after which the newest checkpoint was saved
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
        """Restore the newest checkpoint, if any, and the records since then; journal the start."""
        self.number = self.saved = self._checkpoints.load(self.job, warn=self.note, expected=history.saved)
        if isinstance(self.job, Retellable) and history.records:
            self.job.retell(history.records)
        self._journal.append("start", step=self.number, pid=os.getpid())
        history.void(self.number)
        if self._policy.tensorboard:
            self._events = open_events(self._layout.events, history.steps)
        if history.steps:
            self._last = history.steps[-1].step
        if self.number:
            self._display.message(f"resumed at {self.progress}")

    @property
    def progress(self) -> str:
        """How far the job is, e.g. `train 31/48`."""
        if self._last is None:
            return "the start"
        total = "" if self._last.total is None else f"/{self._last.total}"
        return f"{self._last.phase} {self._last.done}{total}"

    def record(self, step: Step, last: bool) -> None:
        """Journal and show a step; save a checkpoint when one is due, or when this is the last step of the session."""
        self.number += 1
        self._last = step
        self._journal.append("step", step=self.number, **_fields(step))
        if self._events is not None:
            self._events.add(Logged(number=self.number, time=time.time(), step=step))
        self._display.step(step)
        if last or step.checkpoint or self._due():
            self.save()

    def save(self) -> None:
        """Save a checkpoint after the last step, unless there is one."""
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
        """Write the result; with it the run is finished."""
        result: Mapping[str, Json] = strict(self.job.result())
        write_json(self._layout.result, result, what="result")
        self._journal.append("end", step=self.number)
        return dict(result)

    def close(self) -> None:
        """Close the event file."""
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


class Events:
    """The event file of TensorBoard: scalars `phase/metric` over `done`. A full disk ends it without an error."""

    def __init__(self, folder: Path, history: Iterable[Logged]) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        for file in folder.glob(EVENT_FILES):
            with suppress(OSError):
                file.unlink()
        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._writer: Any = None
        try:
            self._writer = EventFileWriter(str(folder), flush_secs=FLUSH_SECONDS)
        except (OSError, UnicodeError):  # TensorBoard refuses folder names that are not UTF-8
            return
        for logged in history:
            self.add(logged)

    def add(self, logged: Logged) -> None:
        """Write the metrics of one step."""
        step = logged.step
        values = [
            self._summary.Value(tag=visible(f"{step.phase}/{name}"), simple_value=value)
            for name, value in step.metrics.items()
        ]
        if not values or self._writer is None:
            return
        summary = self._summary(value=values)
        try:
            self._writer.add_event(self._event(wall_time=logged.time, step=step.done, summary=summary))
        except OSError:
            self._writer = None

    def close(self) -> None:
        """Write what is pending and close the file."""
        if self._writer is None:
            return
        try:
            self._writer.close()
        except OSError:
            self._writer = None


def open_events(folder: Path, history: Iterable[Logged]) -> Events | None:
    """Open the event file, or return None where TensorBoard is not installed."""
    return Events(folder, history) if find_spec("tensorboard") else None

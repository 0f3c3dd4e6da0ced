"""TensorBoard's view of the journal, when TensorBoard is installed; neither torch nor TensorFlow is needed.

Each session writes the view anew from the journal: nothing repeated, nothing lost to a kill, and a run made
without TensorBoard gains its curves on the next resume.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from segtailor.core.text import visible
from segtailor.runs.reading import Logged

PREFIX = "events.out.tfevents."  # how TensorBoard names its files


class Events:
    """Scalars `phase/metric` over `done`. Gives up quietly when the disk is full: the journal has it all."""

    def __init__(self, folder: Path, history: Iterable[Logged]) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        for file in folder.glob(f"{PREFIX}*"):
            with suppress(OSError):
                file.unlink()
        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._writer: Any = None
        try:
            self._writer = EventFileWriter(str(folder), flush_secs=10)
        except (OSError, UnicodeError):  # TensorBoard refuses folders whose name is no UTF-8
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
        """Write what is pending."""
        if self._writer is None:
            return
        try:
            self._writer.close()
        except OSError:
            self._writer = None


def events(folder: Path, history: Iterable[Logged]) -> Events | None:
    """Open the view where TensorBoard is installed."""
    return Events(folder, history) if find_spec("tensorboard") else None

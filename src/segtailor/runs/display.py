"""Progress of a run for its user: live on a terminal, lines in a pipe, or nothing.

Everything goes to one stream, stderr, so that stdout stays free for the JSON document. A display that can no
longer write (closed terminal, broken pipe) writes no more, and the run continues.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from segtailor.core.job import Step
from segtailor.core.text import visible

LINE_SECONDS = 1.0  # shortest time between two progress lines
SPEED_SECONDS = 600.0  # the remaining time is estimated from the steps of the last ten minutes
CLOSED_STREAM_ERRORS = (OSError, ValueError)  # raised when writing to a closed terminal, pipe or file


class Display(Protocol):
    """Shows progress and messages of a run."""

    def open(self, title: str) -> None:
        """Begin a run."""

    def step(self, step: Step) -> None:
        """Show progress."""

    def message(self, text: str) -> None:
        """Show a message that must not be missed."""

    def close(self) -> None:
        """End the run, leaving the terminal as it was."""


class Quiet:
    """Shows nothing."""

    def open(self, title: str) -> None:
        """Begin a run."""

    def step(self, step: Step) -> None:
        """Show progress."""

    def message(self, text: str) -> None:
        """Show a message that must not be missed."""

    def close(self) -> None:
        """End the run."""


class Lines:
    """One line per event, for pipes and log files: progress at most once a second, messages always."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._next = 0.0
        self._start = 0.0
        self._pending: str | None = None

    def open(self, title: str) -> None:
        """Begin a run."""
        self._start = self._next = self._clock()
        self._write(title)

    def step(self, step: Step) -> None:
        """Show progress, unless the last line is younger than a second."""
        now = self._clock()
        line = f"{describe(step)}  [{_duration(now - self._start)}]"
        if step.message:
            self.message(step.message)
        self._pending = line
        if now >= self._next:
            self._next = now + LINE_SECONDS
            self._flush()

    def message(self, text: str) -> None:
        """Write a line now."""
        self._write(text)

    def close(self) -> None:
        """Write the last progress line if it was held back."""
        self._flush()

    def _flush(self) -> None:
        if self._pending is not None:
            self._write(self._pending)
        self._pending = None

    def _write(self, line: str) -> None:
        with suppress(*CLOSED_STREAM_ERRORS):
            self._stream.write(visible(line) + "\n")
            self._stream.flush()


class Screen(Console):
    """A console that writes no more after a broken pipe; rich would end the process and redirect stdout."""

    def on_broken_pipe(self) -> None:
        """Write no more."""
        self.quiet = True


class Terminal:
    """A live view: one bar per phase, the newest metrics below, messages above."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None

    def open(self, title: str) -> None:
        """Begin a run."""
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            speed_estimate_period=SPEED_SECONDS,
        )
        self._phases: dict[str, TaskID] = {}
        self._status = Text()
        self._live = Live(get_renderable=self._view, console=self._console, redirect_stdout=False)
        self.message(title)
        with suppress(*CLOSED_STREAM_ERRORS):
            self._live.start()

    def step(self, step: Step) -> None:
        """Move the bar of the phase and show its metrics."""
        if step.phase in self._phases:
            self._progress.update(self._phases[step.phase], completed=step.done, total=step.total)
        else:  # starts at `done`, so that steps of earlier sessions do not count as fast ones
            task = self._progress.add_task(visible(step.phase), completed=step.done, total=step.total)
            self._phases[step.phase] = task
        self._status = Text(visible("  ".join(_facts(step))), style="dim", overflow="ellipsis", no_wrap=True)
        if step.message:
            self.message(step.message)

    def message(self, text: str) -> None:
        """Print above the bars."""
        with suppress(*CLOSED_STREAM_ERRORS):
            self._console.print(Text(visible(text)), soft_wrap=True)

    def close(self) -> None:
        """End the run, leaving the last state on the screen."""
        if self._live is not None:
            with suppress(*CLOSED_STREAM_ERRORS):
                self._live.stop()
            self._live = None

    def _view(self) -> Group:
        return Group(self._progress, self._status)


def display_for(stream: TextIO, *, json: bool = False, quiet: bool = False) -> Display:
    """Choose: nothing when `quiet`, live on a capable terminal, lines elsewhere and with `json`."""
    if quiet:
        return Quiet()
    console = Screen(file=stream)
    live = stream.isatty() and not console.is_dumb_terminal and not json
    return Terminal(console) if live else Lines(stream)


def describe(step: Step) -> str:
    """Describe a step in one line."""
    total = f"/{step.total} ({100 * step.done / step.total:.0f} %)" if step.total else ""
    return "  ".join([f"{step.phase} {step.done}{total}", *_facts(step)])


def _facts(step: Step) -> list[str]:
    best = [f"best {fact}" for fact in _pairs(step.best)]
    return [*_pairs(step.metrics), *best]


def _pairs(values: Mapping[str, object]) -> list[str]:
    return [_pair(name, value) for name, value in values.items()]


def _pair(name: str, value: object) -> str:
    if not isinstance(value, float):
        return f"{name} {value}"
    return f"left {_duration(value)}" if name == "seconds_left" else f"{name} {value:.4g}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"

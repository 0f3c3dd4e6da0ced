"""Long work as a job: it yields steps, and can be stopped and resumed between two of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from segtailor.core.codec import Json


@dataclass(frozen=True, kw_only=True)
class Step:
    """One progress record, for displays, journals and reports.

    `checkpoint` asks the run to save now (e.g. end of an epoch); `message` is for the user (e.g. a halved batch).
    `records` are results that must not be lost before the next checkpoint: a `Retellable` job gets them on resume.
    """

    phase: str
    done: int
    total: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    best: Mapping[str, Json] = field(default_factory=dict)
    message: str | None = None
    checkpoint: bool = False
    records: tuple[Mapping[str, Json], ...] = ()


@runtime_checkable
class Job(Protocol):
    """A resumable iterator of progress records."""

    def steps(self) -> Iterator[Step]:
        """Work, and yield at most a few steps per second; ends when the work is done."""

    def save(self, folder: Path) -> None:
        """Write everything that is needed to continue into an empty folder."""

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote; `steps` then continues from there."""

    def result(self) -> Mapping[str, Json]:
        """Return the outcome after the last step."""


@runtime_checkable
class Retellable(Protocol):
    """A job whose steps carry records. A record stays valid even if the steps around it are repeated after a crash."""

    def retell(self, records: Iterable[Mapping[str, Json]]) -> None:
        """Take the records of earlier sessions, oldest first, after `load`; newer ones replace older ones."""

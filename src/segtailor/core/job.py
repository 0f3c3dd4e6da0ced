"""Anything that takes time: a job yields steps, and between two steps it is always safe to stop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from segtailor.core.codec import Json


@dataclass(frozen=True, kw_only=True)
class Step:
    """One progress record: all that displays, journals and reports know of a job.

    `checkpoint` asks the run to save now (e.g. end of an epoch); `message` is for the user (e.g. a halved batch).
    `records` are results that must not be lost before the next checkpoint: a `Retellable` job gets them back.
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
        """Work, yielding a few steps per second at most; ends when the work is done."""

    def save(self, folder: Path) -> None:
        """Write everything needed to go on from here into an empty folder."""

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote; `steps` then goes on from there."""

    def result(self) -> Mapping[str, Json]:
        """Return the outcome after the last step."""


@runtime_checkable
class Retellable(Protocol):
    """A job whose steps carry records, each of which stays true whatever else is repeated after a crash."""

    def retell(self, records: Iterable[Mapping[str, Json]]) -> None:
        """Learn the records of earlier sessions, oldest first, after `load`; newer ones win."""

"""The journal of a run: JSON lines that are only appended, and what they say about the steps of the run.

Each line reaches the operating system at once, so a killed process loses none. The journal is the one full record
of a run, and its metrics file. Every entry has `kind` and `time` (seconds since 1970):

- `start`: a session begins after step number `step` (0, or that of the restored checkpoint);
- `step`: step number `step` with `phase`, `done`, `total`, `metrics`, `best`, `message`;
- `checkpoint`: the state after step number `step` is on disk;
- `note`: something the user was told (`message`); `interrupt`, `error`, `end`: how a session ended.

A session repeats the steps after its checkpoint, so the file may hold a step number twice: `start` with
`step: n` voids every earlier entry of a step after `n`. `read_history` applies that rule.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from segtailor.core.atomic import open_in_place, strict, writing
from segtailor.core.codec import Json
from segtailor.core.errors import RunProblem
from segtailor.core.job import Step
from segtailor.runs.layout import Layout

Entry: TypeAlias = dict[str, Json]
BLOCK_BYTES = 4096  # read at once when looking for the last complete line
MAX_NUMBER = 1e300  # in entries; not-a-number is written as null


class Journal:
    """The only writer of a journal. Opening it removes a last line that a crash cut off."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open_in_place(path, what="journal")
        with writing(path, what="journal"):
            self._size = _complete_bytes(self._file)
            os.ftruncate(self._file, self._size)

    def append(self, kind: str, **fields: Json) -> None:
        """Add one entry; when it does not fit on the disk, the journal stays as it was."""
        entry = strict({"kind": kind, "time": round(time.time(), 3), **fields})
        line = json.dumps(entry, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        with writing(self._path, what="journal"):
            try:
                self._write(line)
            except OSError:
                os.ftruncate(self._file, self._size)
                raise
        self._size += len(line)

    def sync(self) -> None:
        """Make all entries so far survive a power cut."""
        with writing(self._path, what="journal"):
            os.fsync(self._file)

    def close(self) -> None:
        """Close the file; entries are already written."""
        os.close(self._file)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, line: bytes) -> None:
        written = 0
        while written < len(line):
            written += os.pwrite(self._file, line[written:], self._size + written)


@dataclass(frozen=True, kw_only=True)
class Logged:
    """A step in the journal: its number in the run, counted from 1, and when it was written."""

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
        """Remove the steps with a number greater than `after`, because a session repeats them."""
        while self.steps and self.steps[-1].number > after:
            self.steps.pop()


def read_steps(folder: Path) -> list[Logged]:
    """Return the steps of a run, each once and in order, even if sessions repeated some of them."""
    return read_history(folder).steps


def read_history(folder: Path, *, damaged: Callable[[str], None] | None = None) -> History:
    """Read the journal of a run; for `damaged` see `entries`."""
    history = History()
    for entry in entries(Layout(folder).journal, damaged=damaged):
        if entry["kind"] == "start":
            history.void(_step_number(entry))
        elif entry["kind"] == "step":
            history.void(_step_number(entry) - 1)
            logged = _logged(entry)
            history.steps.append(logged)
            history.records += logged.step.records
        elif entry["kind"] == "checkpoint":
            history.saved = True
    return history


def entries(path: Path, *, damaged: Callable[[str], None] | None = None) -> Iterator[Entry]:
    """Stream the entries of a journal; a missing file has none, and an incomplete last line is ignored.

    A damaged line raises `RunProblem` with its number, or is skipped after `damaged` was called with the message.
    """
    if not path.exists():
        return
    if not path.is_file():  # reading a pipe would never end
        message = f"{path} is no regular file; this run has no journal that can be read."
        if damaged is None:
            raise RunProblem(message)
        damaged(message)
        return
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.endswith(b"\n"):
                return
            entry = _parse(line)
            if entry is not None:
                yield entry
                continue
            message = f"line {number} of {path} is damaged; remove that line, the others do not depend on it."
            if damaged is None:
                raise RunProblem(message)
            damaged(message)


def _step_number(entry: dict[str, Any]) -> int:
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
    return Logged(number=_step_number(entry), time=float(entry.get("time", 0)), step=step)


def _parse(line: bytes) -> Entry | None:
    """Return the entry of a line, None if the line is damaged."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    valid = isinstance(entry, dict) and isinstance(entry.get("kind"), str) and _has_valid_fields(entry)
    return entry if valid else None


def _has_valid_fields(entry: Entry) -> bool:
    """Tell whether the fields of an entry have the types that this module writes; every field may be missing."""
    return all(name not in entry or is_valid(entry[name]) for name, is_valid in FIELDS.items())


def _is_count(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MAX_NUMBER


def _are_numbers(value: Json) -> bool:
    return isinstance(value, dict) and all(one is None or _is_number(one) for one in value.values())


FIELDS: Mapping[str, Callable[[Json], bool]] = {
    "step": _is_count,
    "time": _is_number,
    "phase": lambda value: isinstance(value, str),
    "done": _is_count,
    "total": lambda value: value is None or _is_count(value),
    "metrics": _are_numbers,
    "best": lambda value: isinstance(value, dict),
    "message": lambda value: value is None or isinstance(value, str),
    "records": lambda value: isinstance(value, list) and all(isinstance(row, dict) for row in value),
}


def _complete_bytes(file: int) -> int:
    """Return the size of the file up to the end of its last complete line."""
    end = os.fstat(file).st_size
    while end > 0:
        start = max(0, end - BLOCK_BYTES)
        position = os.pread(file, end - start, start).rfind(b"\n")
        if position >= 0:
            return start + position + 1
        end = start
    return 0

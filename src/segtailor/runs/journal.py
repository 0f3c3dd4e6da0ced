"""Append-only JSON lines: each line reaches the operating system at once, so a killed process loses none.

The journal is the truth about a run and its metrics file. Every entry has `kind` and `time` (since 1970):

- `start`: a session begins after step number `step` (0, or that of the restored checkpoint);
- `step`: step number `step` with `phase`, `done`, `total`, `metrics`, `best`, `message`;
- `checkpoint`: the state after step number `step` is on disk;
- `note`: something the user was told (`message`); `interrupt`, `error`, `end`: how a session ended.

A session repeats the steps after its checkpoint, so the file may hold a step number twice: `start` with
`step: n` voids every earlier entry of a step after `n`. `read_steps` in `reading.py` applies that rule.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

from segtailor.core.atomic import open_in_place, strict, writing
from segtailor.core.codec import Json
from segtailor.core.errors import RunProblem

Entry: TypeAlias = dict[str, Json]
BLOCK = 4096
LARGEST = 1e300  # of numbers in entries; not-a-number is written as null


class Journal:
    """The one writer. Opening removes the line that a crash may have cut."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open_in_place(path, what="journal")
        with writing(path, what="journal"):
            self._size = _complete(self._file)
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


def entries(path: Path, *, damaged: Callable[[str], None] | None = None) -> Iterator[Entry]:
    """Stream the entries of a journal; a missing file has none, and a last line without end is not yet one.

    A damaged line raises `RunProblem` with its number, or is passed over after `damaged` was told.
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


def _parse(line: bytes) -> Entry | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) and isinstance(entry.get("kind"), str) and _sound(entry) else None


def _sound(entry: Entry) -> bool:
    """Tell whether the fields of an entry are what this module writes; those that are missing are not missed."""
    return all(name not in entry or fits(entry[name]) for name, fits in FIELDS.items())


def _is_count(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


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


def _complete(file: int) -> int:
    """Return the size of the file up to the end of its last complete line."""
    end = os.fstat(file).st_size
    while end > 0:
        start = max(0, end - BLOCK)
        position = os.pread(file, end - start, start).rfind(b"\n")
        if position >= 0:
            return start + position + 1
        end = start
    return 0

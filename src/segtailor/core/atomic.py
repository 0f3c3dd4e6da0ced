"""Writes that happen completely or not at all: temporary name in the same folder, flush to disk, rename."""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from segtailor.core.errors import RunProblem, UserError

TEMPORARY = ".tmp"  # ends the name of a file that is still being written

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NEARLY_NOTHING = 2**20  # bytes: with less than this free, a failed write failed for lack of space


def write_bytes(path: Path, data: bytes, *, what: str) -> None:
    """Replace the file `path`; `what` names it in the error."""
    with new_file(path, what=what) as temporary:
        temporary.write_bytes(data)


@contextmanager
def new_file(path: Path, *, what: str) -> Iterator[Path]:
    """Yield the name of a file to write, which becomes `path`, replacing what was there, when the block ends well."""
    temporary = _temporary(path)
    with writing(path, what=what):
        try:
            yield temporary
            _sync_file(temporary)
            temporary.replace(path)
            sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str, *, what: str) -> None:
    """Replace the file `path` with UTF-8 text; what UTF-8 cannot hold (names from odd file systems) is spelt out."""
    write_bytes(path, text.encode(errors="backslashreplace"), what=what)


def write_json(path: Path, data: Any, *, what: str) -> None:
    """Replace the file `path` with indented, strict JSON."""
    write_text(path, json.dumps(strict(data), indent=2, allow_nan=False) + "\n", what=what)


@contextmanager
def new_folder(path: Path, *, what: str) -> Iterator[Path]:
    """Yield an empty folder that becomes `path`, replacing what was there, when the block ends well."""
    temporary = _temporary(path)
    with writing(path, what=what):
        try:
            temporary.mkdir(parents=True)
            yield temporary
            sync_tree(temporary)
            _replace_folder(path, temporary)
            sync_folder(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def writing(path: Path, *, what: str) -> Iterator[None]:
    """Turn a write that failed for an outside reason into a `RunProblem` that says what to do."""
    try:
        yield
    except UserError:
        raise
    except Exception as problem:
        full = _is_full(problem, path)
        if not full and not isinstance(problem, OSError):
            raise
        fault = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
        raise RunProblem(
            f"could not write the {what} to {path}: {fault}. What was there before is intact. "
            + (
                "Free some disk space and resume."
                if full
                else "Check the folder and its permissions, then resume."
            )
        ) from problem


def sweep(folder: Path) -> None:
    """Remove what interrupted writes left behind in `folder`; only for the one process that writes there."""
    for path in folder.glob(f".*{TEMPORARY}"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` survive a power cut, where the file system can."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems refuse to sync folders
            os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Make every file and folder below `folder` survive a power cut."""
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            sync_folder(path)
        else:
            _sync_file(path)
    sync_folder(folder)


def strict(data: Any) -> Any:
    """Return plain JSON data; numbers that JSON cannot hold (nan, inf) become null."""
    if isinstance(data, float):
        return float(data) if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {str(name): strict(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [strict(value) for value in data]
    return data


def _replace_folder(path: Path, new: Path) -> None:
    """Put `new` in the place of `path`; a crash between the two renames leaves neither there."""
    if not path.exists():
        new.rename(path)
        return
    old = _temporary(path)
    path.rename(old)  # no folder can be renamed onto one that is not empty
    try:
        new.rename(path)
    except OSError:
        old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _sync_file(path: Path) -> None:
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


def _temporary(path: Path) -> Path:
    return path.parent / f".{path.name}.{secrets.token_hex(4)}{TEMPORARY}"


def _is_full(problem: Exception, path: Path) -> bool:
    """Tell whether the disk is full; libraries that write in C++ or Rust report it as any error they like."""
    if isinstance(problem, OSError) and problem.errno is not None:
        return problem.errno in FULL
    if any(os.strerror(number) in str(problem) for number in FULL):
        return True
    with suppress(OSError):
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        return shutil.disk_usage(folder).free < NEARLY_NOTHING
    return False

"""Writes that happen completely or not at all: temporary name in the same folder, flush to disk, rename."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from segtailor.core.errors import RunProblem, UserError

TEMPORARY = ".segtailor-tmp"  # ends the name of a file that is still being written: no other program's does
LEFT_BEHIND = re.compile(rf"\..*\.[0-9a-f]{{16}}{re.escape(TEMPORARY)}", re.DOTALL)
LONGEST_NAME = 100  # bytes of a file's own name inside the temporary one, as names have at most 255

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NEARLY_NOTHING = 2**20  # bytes: with less than this free, a failed write failed for lack of space


def write_bytes(path: Path, data: bytes, *, what: str) -> None:
    """Replace the file `path`; `what` names it in the error."""
    with new_file(path, what=what) as temporary:
        temporary.write_bytes(data)


@contextmanager
def new_file(path: Path, *, what: str) -> Iterator[Path]:
    """Yield the name of a file to write, which becomes `path`, replacing what was there, when the block ends well."""
    temporary = temporary_name(path)
    with writing(path, what=what):
        if path.exists() and not path.is_file():  # a rename would put a file in the place of a device
            kind = "folder" if path.is_dir() else "device or pipe"
            raise RunProblem(f"could not write the {what} to {path}: that is a {kind}. Choose another name.")
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
    temporary = temporary_name(path)
    with writing(path, what=what):
        try:
            if path.is_symlink() or (path.exists() and not path.is_dir()):
                raise RunProblem(
                    f"could not write the {what} to {path}: that is no folder. Choose another name."
                )
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
        if not LEFT_BEHIND.fullmatch(path.name):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()


def open_in_place(path: Path, *, what: str) -> int:
    """Open a file that is changed where it lies, making it if need be; never one that lies elsewhere.

    Links (also hard ones, which are a second name of some other file), devices and pipes are refused.
    """
    with writing(path, what=what):
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
        except OSError as problem:
            if problem.errno in (errno.ELOOP, errno.ENXIO) or path.is_symlink():
                raise _elsewhere(path, what) from None
            raise
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            os.close(file)
            raise _elsewhere(path, what)
        return file


def _elsewhere(path: Path, what: str) -> RunProblem:
    return RunProblem(
        f"{path} is no file of its own but a link, device or pipe: writing the {what} would change something "
        "elsewhere. Remove it, or put a copy in its place."
    )


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
    old = temporary_name(path)
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


def temporary_name(path: Path) -> Path:
    """Return a name beside `path` that nobody else uses, and that `sweep` knows as ours."""
    name = os.fsdecode(os.fsencode(path.name)[:LONGEST_NAME])
    return path.parent / f".{name}.{secrets.token_hex(8)}{TEMPORARY}"


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

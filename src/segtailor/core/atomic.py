"""Write files completely or not at all: under a temporary name in the same folder, flushed to disk, then renamed.

Also opens the few files that are changed in place (journal, locks) without following links.
"""

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

TEMPORARY = ".segtailor-tmp"  # suffix of a file that is still being written; no other program uses it
TEMPORARY_NAME = re.compile(rf"\..*\.[0-9a-f]{{16}}{re.escape(TEMPORARY)}", re.DOTALL)
MAX_NAME_BYTES = 100  # of the final name inside the temporary one; file systems allow 255 in all

DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FULL_DISK_BYTES = 2**20  # with less free space than this, a failed write is taken for a full disk

# Flags of `os.open`: follow no link, do not wait for the other end of a pipe. Windows has none of them.
NO_LINKS: int = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


def write_bytes(path: Path, data: bytes, *, what: str) -> None:
    """Replace the file `path`; `what` names it in the error."""
    with new_file(path, what=what) as temporary:
        temporary.write_bytes(data)


@contextmanager
def new_file(path: Path, *, what: str) -> Iterator[Path]:
    """Yield a temporary file name to write to; it is renamed to `path` when the block ends without an error."""
    temporary = temporary_name(path)
    with writing(path, what=what):
        if path.exists() and not path.is_file():  # a rename would replace a device by a file
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
    """Replace the file `path` with UTF-8 text; characters that UTF-8 cannot hold are escaped."""
    write_bytes(path, text.encode(errors="backslashreplace"), what=what)


def write_json(path: Path, data: Any, *, what: str) -> None:
    """Replace the file `path` with indented, strict JSON."""
    write_text(path, json.dumps(strict(data), indent=2, allow_nan=False) + "\n", what=what)


@contextmanager
def new_folder(path: Path, *, what: str) -> Iterator[Path]:
    """Yield an empty temporary folder; it is renamed to `path` when the block ends without an error."""
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
    """Turn an error of the operating system into a `RunProblem` that says what to do; other errors pass through."""
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
    """Remove temporary files that interrupted writes left in `folder`; no other process may be writing there."""
    for path in folder.glob(f".*{TEMPORARY}"):
        if not TEMPORARY_NAME.fullmatch(path.name):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()


def open_in_place(path: Path, *, what: str) -> int:
    """Open a file to change it in place, and create it if it is missing; see `open_unlinked` for what is refused."""
    with writing(path, what=what):
        return open_unlinked(path, what=what)


def open_unlinked(path: Path, *, what: str) -> int:
    """Open a file for reading and writing, and create it if it is missing.

    Symbolic and hard links, devices and pipes are refused: writing would change something outside of `path`.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | NO_LINKS, 0o666)
    except OSError as problem:
        if problem.errno in (errno.ELOOP, errno.ENXIO) or path.is_symlink():
            raise _linked(path, what) from None
        raise
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(file)
        raise _linked(path, what)
    return file


def _linked(path: Path, what: str) -> RunProblem:
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
    """Return plain JSON data; not-a-number and infinity, which JSON cannot hold, become null."""
    if isinstance(data, float):
        return float(data) if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {str(name): strict(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [strict(value) for value in data]
    return data


def _replace_folder(path: Path, new: Path) -> None:
    """Rename the folder `new` to `path`; after a crash between the two renames there is no `path`."""
    if not path.exists():
        new.rename(path)
        return
    old = temporary_name(path)
    path.rename(old)  # a folder cannot be renamed onto one that is not empty
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
    """Return an unused name in the folder of `path` that `sweep` recognises."""
    name = os.fsdecode(os.fsencode(path.name)[:MAX_NAME_BYTES])
    return path.parent / f".{name}.{secrets.token_hex(8)}{TEMPORARY}"


def _is_full(problem: Exception, path: Path) -> bool:
    """Tell whether the disk is full; libraries written in C++ or Rust report that with various errors."""
    if isinstance(problem, OSError) and problem.errno is not None:
        return problem.errno in DISK_FULL_ERRORS
    if any(os.strerror(number) in str(problem) for number in DISK_FULL_ERRORS):
        return True
    with suppress(OSError):
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        return shutil.disk_usage(folder).free < FULL_DISK_BYTES
    return False

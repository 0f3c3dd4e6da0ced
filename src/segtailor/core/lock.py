"""File locks, taken with `filelock`. The system frees the lock of a process that dies, so no lock goes stale.

Only the locking itself is the library's. The lock file is opened here, because links must be refused, and a
refusal must name the process that holds the lock. Lock files are never removed: that would race with the next holder.
"""

from __future__ import annotations

import errno
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import lock_descriptor

from segtailor.core.atomic import open_in_place, open_unlinked, writing
from segtailor.core.errors import RunProblem

NO_LOCKS = (
    errno.ENOSYS,
    errno.ENOTSUP,
    errno.ENOLCK,
)  # from file systems without locks, e.g. of some clusters
OWNER_BYTES = 4096  # at most, of a lock file


@contextmanager
def hold(path: Path) -> Iterator[bool]:
    """Hold the lock file `path`, or raise `RunProblem` naming the process that holds it.

    Yields False where the file system has no locks: the caller warns and continues without protection.
    """
    file = open_in_place(path, what="lock")
    try:
        yield _take(file, path)
    finally:
        os.close(file)  # frees the lock


@contextmanager
def wait_for(path: Path) -> Iterator[bool]:
    """Wait until no other process holds the lock file `path`, then hold it; yields False where locks do not work."""
    file = open_unlinked(path, what="lock")
    locked = False
    try:
        with suppress(OSError):
            locked = lock_descriptor(file)
        yield locked
    finally:
        os.close(file)


def _take(file: int, path: Path) -> bool:
    """Take the lock without waiting, and write into the file which process holds it."""
    try:
        free = lock_descriptor(file, blocking=False)
    except OSError as problem:
        if problem.errno in NO_LOCKS:
            return False
        raise
    if not free:
        raise RunProblem(
            f"{path.parent} is in use by {_holder(file)}: two processes would spoil each other's run. "
            "Wait for it, stop it, or choose another folder."
        )
    if _owner(file) is None and os.pread(file, OWNER_BYTES, 0).strip(b"\0"):  # a power cut may leave zeros
        raise RunProblem(
            f"{path} is no lock of ours: it holds something else. Move it away, or choose another folder."
        )
    with writing(path, what="lock"):
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps({"pid": os.getpid(), "host": platform.node()}).encode(), 0)
    return True


def _holder(file: int) -> str:
    owner = _owner(file)  # none between the moments when a process takes the lock and writes its name
    return "another process" if owner is None else f"process {owner['pid']} on {owner['host']}"


def _owner(file: int) -> dict[str, Any] | None:
    try:
        owner = json.loads(os.pread(file, OWNER_BYTES, 0))
    except ValueError:
        return None
    return owner if isinstance(owner, dict) and {"pid", "host"} <= set(owner) else None

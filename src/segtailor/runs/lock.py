"""One process per run directory. The system frees the lock when its holder dies, so none goes stale."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from segtailor.core.atomic import open_in_place, writing
from segtailor.core.errors import RunProblem

CANNOT_LOCK = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)  # some cluster file systems


@contextmanager
def hold(path: Path) -> Iterator[bool]:
    """Hold the lock file `path`, or raise `RunProblem` naming the process that does.

    Yields False where the file system knows no locks: the caller says so and works on, unprotected.
    """
    file = open_in_place(path, what="lock")
    try:
        yield _take(file, path)
    finally:
        os.close(file)  # frees the lock; the file stays, as removing it would race with the next holder


def _take(file: int, path: Path) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunProblem(
            f"{path.parent} is in use by {_holder(file)}: two processes would spoil each other's run. "
            "Wait for it, stop it, or choose another folder."
        ) from None
    except OSError as problem:
        if problem.errno in CANNOT_LOCK:
            return False
        raise
    if _owner(file) is None and os.pread(file, 4096, 0).strip(b"\0"):  # a power cut may leave zeros
        raise RunProblem(
            f"{path} is no lock of ours: it holds something else. Move it away, or choose another folder."
        )
    with writing(path, what="lock"):
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps({"pid": os.getpid(), "host": platform.node()}).encode(), 0)
    return True


def _holder(file: int) -> str:
    owner = _owner(file)  # none where it was caught between taking the lock and signing it
    return "another process" if owner is None else f"process {owner['pid']} on {owner['host']}"


def _owner(file: int) -> dict[str, Any] | None:
    try:
        owner = json.loads(os.pread(file, 4096, 0))
    except ValueError:
        return None
    return owner if isinstance(owner, dict) and {"pid", "host"} <= set(owner) else None

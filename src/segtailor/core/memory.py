"""How much memory work may take: what is free is compared with what is needed before anything is allocated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

from segtailor.core.errors import Unsupported

try:
    import resource as _resource
except ImportError:  # not on Windows
    resource: Any = None
else:
    resource = _resource


def free_memory() -> int:
    """Return the main memory that can be taken without swapping, in bytes."""
    return int(psutil.virtual_memory().available)


def check_memory(needed: int, *, what: str, remedy: str, free: int | None = None) -> None:
    """Raise `Unsupported` where `what` needs more bytes than are free: the system would swap, or end the process."""
    free = free_memory() if free is None else free
    if needed > free:
        raise Unsupported(
            f"{what} needs {in_gib(needed)} GiB of memory or more, {in_gib(free)} GiB are free. {remedy}"
        )


def in_gib(size: int) -> str:
    """Return bytes as a short number of GiB; whole numbers stay exact, however large."""
    return f"{size / 2**30:.1f}" if size < 2**60 else f"{size // 2**30:,}"


@contextmanager
def bounded_memory(budget: int) -> Iterator[None]:
    """Let this process take at most `budget` more bytes inside; beyond it allocating raises `MemoryError`.

    The limit is that of the whole process, so that it is meant for short reading of files that nobody vouches for.
    Where the system has no such limit (Windows, macOS) nothing is bounded.
    """
    if resource is None or not hasattr(resource, "RLIMIT_AS"):
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = psutil.Process().memory_info().vms + budget
    tighter = wanted if soft == resource.RLIM_INFINITY else min(soft, wanted)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (tighter, hard))
    except (OSError, ValueError):  # macOS refuses limits below what is mapped already
        yield
        return
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

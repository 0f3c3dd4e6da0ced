"""Memory: what is needed is compared with what is free before anything is allocated."""

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
    """Return the bytes of main memory that can be allocated without swapping."""
    return int(psutil.virtual_memory().available)


def check_memory(needed: int, *, what: str, remedy: str, free: int | None = None) -> None:
    """Raise `Unsupported` if `what` needs more bytes than are free: the system would swap or end the process."""
    free = free_memory() if free is None else free
    if needed > free:
        raise Unsupported(
            f"{what} needs {in_gib(needed)} GiB of memory or more, {in_gib(free)} GiB are free. {remedy}"
        )


def in_gib(size: int) -> str:
    """Write bytes as GiB: with one decimal, or for very large numbers without."""
    return f"{size / 2**30:.1f}" if size < 2**60 else f"{size // 2**30:,}"


@contextmanager
def bounded_memory(budget: int) -> Iterator[None]:
    """Let this process allocate at most `budget` more bytes inside the block; more raises `MemoryError`.

    The limit applies to the whole process. It is meant for short reads of files that cannot be trusted. On systems
    without such a limit (Windows, macOS) nothing is bounded.
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

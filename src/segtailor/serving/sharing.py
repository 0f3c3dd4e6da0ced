"""What visitors share: memory for what they send, and the network, of which none may take everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from starlette.exceptions import HTTPException

from segtailor.serving.demo import Answer, Demo


class Share:
    """An amount of something; an address gets half of it at most."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._taken: Counter[str] = Counter()

    @contextmanager
    def visit(self, address: str) -> Iterator[Visit]:
        """Let an address take of it; what it took is returned at the end."""
        visit = Visit(self, address)
        try:
            yield visit
        finally:
            self._taken[address] -= visit.taken
            self._taken += Counter()  # forgets who has nothing

    def take(self, address: str, amount: int) -> None:
        """Take an amount, or raise."""
        own = self._taken[address] + amount
        if own > max(1, self._total // 2) or self._taken.total() + amount > self._total:
            raise HTTPException(
                503, "too many pictures at once. Try again in a moment.", {"retry-after": "5"}
            )
        self._taken[address] = own


class Visit:
    """What one request took."""

    def __init__(self, share: Share, address: str) -> None:
        self._share, self._address, self.taken = share, address, 0

    def take(self, amount: int) -> None:
        """Take an amount, or raise."""
        self._share.take(self._address, amount)
        self.taken += amount


class Lanes:
    """Pictures one after the other, as a network uses all cores by itself; small ones need not wait for large ones."""

    def __init__(self, demo: Demo) -> None:
        self._demo = demo
        self._small, self._large = (ThreadPoolExecutor(1, f"{size} pictures") for size in ("small", "large"))
        self._work: set[Future[Answer]] = set()

    @property
    def busy(self) -> bool:
        """Whether a picture is being worked on."""
        return any(work.running() for work in list(self._work))

    def submit(self, data: bytes, size: tuple[int, int]) -> Future[Answer]:
        """Queue a picture of a size (height, width)."""
        lane = self._small if size[0] * size[1] <= self._demo.limits.small_pixels else self._large
        work = lane.submit(self._demo.analyse, data)
        self._work.add(work)
        work.add_done_callback(self._work.discard)
        return work

"""How many threads a training uses: all on an idle machine, fewer where other programs use the cores.

The threads of one operation wait for each other. Where another program uses a core, each of the thousands of operations
in a step waits for the scheduler: on two cores a step of a small network takes 4 s instead of 0.02 s, while a single
thread is hardly slowed down. So a short probe chooses the number before the first step, and again when steps become
slow. The probe's work is not that of the network: a supernet on small images has thousands of tiny operations that gain
nothing from a second thread. So early in the run some steps are taken with one thread as well, and the faster number
stays. Results with another number of threads may differ in the last digits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import torch
from torch.nn.functional import conv2d

from segtailor.training.device import keep_memory

PROBE_SECONDS = 0.1  # per number of threads
MIN_PROBE_STEPS = 3
MAX_TIME_SHARE = 0.9  # more threads are chosen only if they take less than this share of the time of fewer
SLOW_FACTOR = 1.6  # steps that take so many times the usual time cause a new probe
TRIED_RECORD = 2  # after this progress record, steps are taken with one thread
RECORDS = 3  # progress records whose median counts
RETRY_SECONDS = 30.0  # until more threads are tried again; doubled after each try that changed nothing


def thread_counts(most: int) -> list[int]:
    """Return the numbers of threads to try, in ascending order: 1, 2, 4, ... and `most`."""
    counts = []
    count = 1
    while count < most:
        counts.append(count)
        count *= 2
    return [*counts, most]


def fastest_count(most: int, seconds_of: Callable[[int], float]) -> int:
    """Return the number of threads with the shortest time; more threads must be clearly faster than fewer."""
    best, least = 1, float("inf")
    for count in thread_counts(most):
        seconds = seconds_of(count)
        if seconds < MAX_TIME_SHARE * least:
            best, least = count, seconds
    return best


def probe(count: int) -> float:
    """Return the mean seconds of a fixed piece of work with `count` threads: small convolutions and their gradients.

    It is the mean and not the minimum, because the time spent waiting for busy cores must count. No random numbers are
    drawn, so that the training afterwards is the same.
    """
    torch.set_num_threads(count)
    _work()
    begin, steps = time.perf_counter(), 0
    while steps < MIN_PROBE_STEPS or time.perf_counter() - begin < PROBE_SECONDS:
        _work()
        steps += 1
    return (time.perf_counter() - begin) / steps


class Threads:
    """The number of threads during a training; `observe` may change it."""

    def __init__(
        self, most: int, *, probe: Callable[[int], float] = probe, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.most = most
        self._probe, self._clock = probe, clock
        self._recent: list[float] = []
        self._usual = float("inf")
        self._pause = RETRY_SECONDS
        self._trial: tuple[int, float] | None = None  # threads and seconds that one thread is compared with
        self._tried = self._settled = False
        self.count = self._choose()

    def observe(self, *, steps: int, seconds: float) -> str | None:
        """Record how long some steps took; return a message if the number of threads changes."""
        if self.most == 1 or not steps or self._settled:
            return None
        if self._trial is not None:
            return self._compare(seconds / steps)
        self._recent = [*self._recent[1 - RECORDS :], seconds / steps]
        if not self._tried and self.count > 1 and len(self._recent) == TRIED_RECORD:
            self._trial, self._tried = (self.count, seconds / steps), True
            self._set(1)
            return None
        if len(self._recent) < RECORDS:
            return None
        now = median(self._recent)
        self._usual = min(self._usual, now)
        slow = now > SLOW_FACTOR * self._usual
        if not slow and (self.count == self.most or self._clock() < self._retry):
            return None
        before, after = self.count, self._choose()
        if after == before:
            self._pause *= 2
            self._usual = max(
                self._usual, now / SLOW_FACTOR
            )  # slow for another reason: do not probe all the time
            return None
        self._pause = RETRY_SECONDS
        why = "other programs use the processor" if after < before else "the processor is free again"
        return f"computing with {after} of {self.most} threads: {why}."

    def _compare(self, alone: float) -> str | None:
        """Keep the number of threads with which the steps themselves were faster."""
        several, beside = self._trial or (1, alone)
        self._trial = None
        if beside < MAX_TIME_SHARE * alone:
            self._set(several)
            self._usual = beside
            return None
        self._settled = True  # other programs hardly slow down a single thread
        return f"computing with 1 of {self.most} threads: more are no faster here."

    def _choose(self) -> int:
        """Probe, and set the fastest number of threads."""
        count = 1 if self.most == 1 else fastest_count(self.most, self._probe)
        if self.most > 1:
            self._set(count)
        self._retry = self._clock() + self._pause
        return count

    def _set(self, count: int) -> None:
        torch.set_num_threads(count)
        self.count = count
        self._recent, self._usual = [], float("inf")


@contextmanager
def chosen_threads(device: torch.device, *, fixed: bool = False) -> Iterator[Threads]:
    """Use the fastest number of threads inside the block, and restore the old number afterwards.

    `fixed` keeps the number, for results that are the same in every digit. Memory stays with the process from then on.
    """
    keep_memory(device)
    most = torch.get_num_threads()
    try:
        yield Threads(1 if fixed or device.type != "cpu" else most)
    finally:
        if torch.get_num_threads() != most:
            torch.set_num_threads(most)


@torch.inference_mode(mode=False)
@torch.enable_grad()
def _work() -> None:
    maps = torch.ones(2, 16, 32, 64)
    kernels = [torch.full((16, 16, 3, 3), 0.01, requires_grad=True) for _ in range(6)]
    for kernel in kernels:
        maps = conv2d(maps, kernel, padding=1).relu()
    maps.mean().backward()  # type: ignore[no-untyped-call]

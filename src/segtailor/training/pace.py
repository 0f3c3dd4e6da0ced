"""How often a long job reports its progress, and how long it may take.

A report waits for the device, so there are only about two of them per second.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

REPORT_SECONDS = 0.5  # between two progress records


class Pace:
    """Decides when the next progress record is due. It counts steps, so that it need not wait for the device.

    Several processes must `agree` on the number of steps, so that they report together.
    """

    def __init__(self, done: int = 0, *, agree: Callable[[int], int] = int) -> None:
        self.since = done
        self._agree = agree
        self._started, self._interval = time.perf_counter(), 1

    def due(self, done: int) -> bool:
        """Tell whether a record is due after `done` steps."""
        return done >= self.since + self._interval

    def seconds(self) -> float:
        """Return how long the steps since the last record took; ask when the device has finished them."""
        return max(time.perf_counter() - self._started, 1e-9)

    def rest(self, done: int, *, seconds: float) -> None:
        """Start again after a record; `seconds` is the time of the steps alone, without validation or saving."""
        self._interval = self._agree(math.ceil(REPORT_SECONDS * (done - self.since) / seconds))
        self._started, self.since = time.perf_counter(), done


class Allowance:
    """The seconds that a job may take over all its sessions."""

    def __init__(self, seconds: float | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._before, self._began = 0.0, clock()
        self._first = 0.0  # seconds of the first step, if it was seen alone

    @property
    def spent(self) -> float:
        """Seconds of work so far, over all sessions."""
        return self._before + self._clock() - self._began

    def begin(self, spent: float | None = None) -> None:
        """Start the clock of a session; `spent` is the time of earlier sessions, if it is known."""
        self._before = self.spent if spent is None else spent
        self._began = self._clock()

    @property
    def over(self) -> bool:
        """Whether the time is used up."""
        return self.seconds is not None and self.spent >= self.seconds

    def total(self, done: int, planned: int, *, least: int, share: float = 1.0) -> int:
        """Return how many steps to do in all: fewer than planned if those would take too long.

        There are at least `least` steps, and never fewer than were done. The mean time of all steps so far but the
        first, which also prepares kernels, predicts the time of the others, so that a short disturbance changes
        little. `share` is the part of the remaining time that steps may use.
        """
        if self.seconds is None:
            return planned
        if done == 1:
            self._first = self.spent
            return planned if self.spent < self.seconds else max(least, done)
        each = max((self.spent - self._first) / max(done - bool(self._first), 1), 1e-9)
        fitting = done + max(0, int(share * (self.seconds - self.spent) / each))
        return min(planned, max(fitting, least, done))

"""How often a long run tells how it is going (twice a second or so, the only moments that wait for a device), and
how long it may take."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

REPORT_SECONDS = 0.5


class Pace:
    """Says when the next progress record is due, in steps, so that asking waits for nothing.

    Several processes must `agree` on the number of steps, or they would not report together.
    """

    def __init__(self, done: int = 0, *, agree: Callable[[int], int] = int) -> None:
        self.since = done
        self._agree = agree
        self._started, self._pause = time.perf_counter(), 1

    def due(self, done: int) -> bool:
        """Tell whether enough steps were done since the last record."""
        return done >= self.since + self._pause

    def seconds(self) -> float:
        """Return how long the steps since the last record took, once the device has done them all."""
        return max(time.perf_counter() - self._started, 1e-9)

    def rest(self, done: int, *, seconds: float) -> None:
        """Count anew, at the speed of the steps that took so long; what was done besides does not count."""
        self._pause = self._agree(math.ceil(REPORT_SECONDS * (done - self.since) / seconds))
        self._started, self.since = time.perf_counter(), done


class Allowance:
    """The seconds that work may take over all its sessions; `spent` before this one were worked already."""

    def __init__(self, seconds: float | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._before, self._began = 0.0, clock()

    @property
    def spent(self) -> float:
        """Seconds worked so far."""
        return self._before + self._clock() - self._began

    def begin(self, spent: float | None = None) -> None:
        """Start the clock of a session; `spent` replaces what was worked before it."""
        self._before = self.spent if spent is None else spent
        self._began = self._clock()

    @property
    def over(self) -> bool:
        """Whether the time is used up."""
        return self.seconds is not None and self.spent >= self.seconds

    def total(self, done: int, planned: int, *, least: int, share: float = 1.0) -> int:
        """Return how many steps there shall be in all: fewer than planned where those would take too long.

        At least `least`, whatever they take, and never fewer than were done. The steps so far say what the others
        will take, all of them, so that a busy moment does not shorten what a quiet hour still allows. `share` of the
        time that is left is for steps.
        """
        if self.seconds is None:
            return planned
        each = max(self.spent / max(done, 1), 1e-9)
        fitting = done + max(0, int(share * (self.seconds - self.spent) / each))
        return min(planned, max(fitting, least, done))

"""How often a long run tells how it is going: twice a second or so, the only moments that wait for a device."""

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

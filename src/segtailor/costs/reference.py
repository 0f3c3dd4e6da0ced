"""One fixed piece of work, timed again and again beside others: what slows it down slows everything."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from torch import nn

from segtailor.core.plan import Shape
from segtailor.core.target import Target
from segtailor.costs.timers import low
from segtailor.targets.runtime import compile_network
from segtailor.targets.timing import TimingSettings, stopwatch, time_all

SLOWED = 1.25  # times the quickest that the reference was ever seen: then other programs get in the way
CHANNELS, SIZE, LAYERS = 16, 64, 4
TIMING = TimingSettings(runs=10, seconds=0.1, warm_up_seconds=0.02, warm_up_limit=0.1, window=2)


class Reference:
    """Remembers the quickest time; `measure` gives the present one in seconds."""

    def __init__(self, measure: Callable[[], float] | None = None) -> None:
        self.best = math.inf
        self._measure = measure

    def look(self) -> float:
        """Measure now; without anything to measure everything looks quiet."""
        if self._measure is None:
            return self.best
        now = self._measure()
        self.best = min(self.best, now)
        return now

    def slow(self, seconds: float) -> bool:
        """Tell whether a look was much slower than the best."""
        return math.isfinite(self.best) and seconds > SLOWED * self.best

    def wait(self, seconds: float) -> float:
        """Wait for a quiet moment, at most so long; return how long that was."""
        begin = time.monotonic()
        while self.slow(self.look()) and time.monotonic() - begin < seconds:
            time.sleep(0.5)
        return time.monotonic() - begin


def reference_for(target: Target) -> Reference:
    """Return the reference of a target: a few convolutions on a processor, which others may use; none elsewhere."""
    if target.device != "cpu":
        return Reference()
    layers = [
        layer for _ in range(LAYERS) for layer in (nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), nn.ReLU())
    ]
    compiled = compile_network(nn.Sequential(*layers).eval(), target, (Shape(CHANNELS, SIZE, SIZE),))

    def measure() -> float:
        (taken,) = time_all([stopwatch(compiled, target.device)], TIMING)
        return low(taken)

    return Reference(measure)

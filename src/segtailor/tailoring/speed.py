"""How fast this machine trains: two short probes, and a straight line between them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from segtailor.api.networks import count
from segtailor.api.training import Surroundings, train_recipe
from segtailor.recipes.recipe import Place

PROBES = ("lpsnet-step0", "lpsnet-s")  # a very small and a usual network
WARM, TIMED = 2, 5  # steps
GIGA = 1e9


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Seconds of a training step: a part for each step and one for each thousand million multiply-accumulates."""

    base: float
    per_gmac: float

    def step(self, macs: float) -> float:
        """Return the seconds of a step over images that together cost `macs` multiply-accumulates."""
        return self.base + self.per_gmac * macs / GIGA

    def macs(self, seconds: float) -> float:
        """Return how much work a step of so many seconds can do."""
        return max(seconds - self.base, 0.0) * GIGA / max(self.per_gmac, 1e-9)


def measure_speed(
    data: str, *, crop: tuple[int, int], batch: int, precision: str, around: Surroundings
) -> Speed:
    """Train two networks for a few steps each; nothing is written but the cache of decoded images."""
    points = []
    for name in PROBES:
        changes = [
            f"fit.batch={batch}",
            f"fit.precision={precision}",
            "val_split=null",
            "fit.optimiser=adamw",
            "reparameterise=true",
        ]
        seconds = [
            _seconds(name, data, crop, [*changes, f"fit.steps={steps}"], around)
            for steps in (WARM, WARM + TIMED)
        ]
        macs = batch * count(name, image=crop).macs
        points.append((macs, max(seconds[1] - seconds[0], 1e-4) / TIMED))
    (small, quick), (large, slow) = points
    slope = max((slow - quick) / (large - small), 0.0)
    return Speed(base=max(quick - slope * small, 1e-4), per_gmac=GIGA * slope)


def _seconds(name: str, data: str, crop: tuple[int, int], changes: list[str], around: Surroundings) -> float:
    recipe = train_recipe(name, data, crop=crop, changes=changes, surroundings=around)
    job = recipe.job(Place(folder=Path(), cache=around.cache, device=around.device))
    begin = time.perf_counter()
    for _ in job.steps():
        pass
    return time.perf_counter() - begin

"""How long a gradient search will take here, from a few of its own steps.

The steps are taken on a job that is thrown away afterwards, so they change no search. Where a single step would take
minutes or much memory, as at the scale of a paper on a CPU, nothing is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from segtailor.core.codec import Json

if TYPE_CHECKING:
    from segtailor.strategies.gradient import GradientSearch

MAX_PIXELS = 2**17  # of a batch of crops: larger ones are not tried out
MEASURED_STEPS = 2  # after one that builds what later steps use


def estimate(search: GradientSearch) -> dict[str, Json]:
    """Return the seconds that a search will take, and what that was computed from; empty where nothing was measured."""
    height, width = search.crop
    if search.batch * height * width > MAX_PIXELS:
        return {}
    ahead, steps, judged = search.planned
    seconds = steps * _mean(search.try_step) + judged * _mean(search.try_judging)
    if ahead:
        seconds += ahead * _mean(search.try_pretraining)
    told = f"{steps} steps" + (f" after {ahead} of pretraining" if ahead else "")
    return {
        "seconds": round(seconds, 1),
        "from": f"{MEASURED_STEPS} measured steps of each kind, for {told} and {judged} networks that are judged",
    }


def _mean(work: Callable[[], None]) -> float:
    work()
    started = time.perf_counter()
    for _ in range(MEASURED_STEPS):
        work()
    return (time.perf_counter() - started) / MEASURED_STEPS

"""How long a search will take here, from a few of its own steps, or from small shares of a trial.

The steps are taken on a job that is thrown away afterwards, so they change no search, and with one thread: on crops of
this size more gain little, and on a busy machine they lose much. Where a single step would take
minutes or much memory, as at the scale of a paper on a CPU, nothing is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch

from segtailor.core.codec import Json

if TYPE_CHECKING:
    from segtailor.strategies.gradient import GradientSearch
    from segtailor.strategies.one_shot import OneShotSearch
    from segtailor.strategies.trials import TrialSearch

MAX_PIXELS = 2**17  # of a batch of crops: larger ones are not tried out
MEASURED_STEPS = 2  # after one that builds what later steps use
TRIED_SHARES = (0.05, 0.2)  # of a trial, after one that opens the data; what both need is in each trial once


class Spent(NamedTuple):
    """Seconds of a clock, and of the processor; the second is what a quiet core needs."""

    clock: float
    processor: float


def estimate(search: GradientSearch) -> dict[str, Json]:
    """Return the seconds that a search will take, and what that was computed from; empty where nothing was measured.

    `seconds` are as busy as the machine is now, `quiet_seconds` of one core that does nothing else.
    """
    height, width = search.crop
    if search.batch * height * width > MAX_PIXELS:
        return {}
    ahead, steps, judged = search.planned
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        parts = [(steps, _mean(search.try_step)), (judged, _mean(search.try_judging))]
        parts += [(ahead, _mean(search.try_pretraining))] if ahead else []
    finally:
        torch.set_num_threads(threads)
    told = f"{steps} steps" + (f" after {ahead} of pretraining" if ahead else "")
    return {
        "seconds": round(sum(count * spent.clock for count, spent in parts), 1),
        "quiet_seconds": round(sum(count * spent.processor for count, spent in parts), 1),
        "from": f"{MEASURED_STEPS} measured steps of each kind with one thread, for {told} and {judged} judgements",
    }


def estimate_one_shot(search: OneShotSearch) -> dict[str, Json]:
    """Return the seconds that a one-shot search will take; empty where a step is too large to try."""
    height, width = search.crop
    if search.batch * height * width > MAX_PIXELS:
        return {}
    steps, judged = search.planned
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        parts = [(steps, _mean(search.try_step)), (judged, _mean(search.try_judging))]
    finally:
        torch.set_num_threads(threads)
    return {
        "seconds": round(sum(count * spent.clock for count, spent in parts), 1),
        "quiet_seconds": round(sum(count * spent.processor for count, spent in parts), 1),
        "from": f"{MEASURED_STEPS} measured steps of each kind with one thread, for {steps} steps and "
        f"{judged} judgements",
    }


def estimate_trials(search: TrialSearch, *, batch: int, crop: tuple[int, int]) -> dict[str, Json]:
    """Return the seconds that a search by trials will take with one worker, from two shares of one trial.

    The trial is that of the middle one, by cost, of the first candidates. Empty where a trial is too large to try or
    fails, or the strategy does not know how many there will be.
    """
    if search.expected is None or batch * crop[0] * crop[1] > MAX_PIXELS:
        return {}
    first = sorted(search.preview(), key=lambda candidate: candidate.cost)
    middle = first[len(first) // 2]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        if search.try_trial(middle, budget=TRIED_SHARES[0]).status == "failed":
            return {}
        less, more = (
            _spent(lambda share=share: search.try_trial(middle, budget=share))  # type: ignore[misc]
            for share in TRIED_SHARES
        )
    finally:
        torch.set_num_threads(threads)
    factor = (1 - TRIED_SHARES[0]) / (TRIED_SHARES[1] - TRIED_SHARES[0])
    clock, processor = (one + factor * max(0.0, two - one) for one, two in zip(less, more, strict=True))
    return {
        "seconds": round(search.expected * clock, 1),
        "quiet_seconds": round(search.expected * processor, 1),
        "from": f"shares of {' and '.join(f'{share:g}' for share in TRIED_SHARES)} of one trial with one thread, for "
        f"{search.expected} trials; larger networks take longer, trials that are stopped early less",
    }


def _spent(work: Callable[[], object]) -> Spent:
    clock, processor = time.perf_counter(), time.process_time()
    work()
    return Spent(time.perf_counter() - clock, time.process_time() - processor)


def _mean(work: Callable[[], None]) -> Spent:
    work()
    clock, processor = time.perf_counter(), time.process_time()
    for _ in range(MEASURED_STEPS):
        work()
    return Spent(
        (time.perf_counter() - clock) / MEASURED_STEPS, (time.process_time() - processor) / MEASURED_STEPS
    )

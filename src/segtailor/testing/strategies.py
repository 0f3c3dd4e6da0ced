"""What a trial strategy must satisfy: the same search for the same seed, and after any interruption."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from segtailor.core.job import Job
from segtailor.core.strategy import Problem, Strategy
from segtailor.testing.operators import expect


def check_strategy(strategy: Strategy, problem: Problem, folder: Path) -> None:
    """Check that a search repeats by seed, and ends the same when stopped after any of its steps and resumed."""
    whole, steps = _outcome(strategy.job(problem))
    expect("result by seed", strategy, _outcome(strategy.job(problem))[0], whole)
    for after in range(1, steps):
        place = folder / str(after)
        place.mkdir(parents=True)
        _stop(strategy.job(problem), place, after=after)
        job = strategy.job(problem)
        job.load(place)
        expect(f"result when stopped after step {after}", strategy, _outcome(job)[0], whole)


def _outcome(job: Job) -> tuple[Any, int]:
    """Return the result of a job, and how many steps it took."""
    steps = sum(1 for _ in job.steps())
    return _timeless(job.result()), steps


def _stop(job: Job, folder: Path, *, after: int) -> None:
    for number, _ in enumerate(job.steps(), start=1):
        if number == after:
            job.save(folder)
            return


def _timeless(data: Any) -> Any:
    """Drop times, which may differ between equal searches."""
    if isinstance(data, Mapping):
        return {name: _timeless(value) for name, value in data.items() if name != "seconds"}
    return [_timeless(value) for value in data] if isinstance(data, list | tuple) else data

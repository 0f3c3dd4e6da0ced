"""What all ask/tell strategies share: the checks before work, and the way to a job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from segtailor.core.errors import Unsupported
from segtailor.core.strategy import AskTell, Judged, Problem, SearchProblem
from segtailor.strategies.halving import Halving
from segtailor.strategies.prices import ArchitecturePrices


class TrialStrategy(Protocol):
    """A strategy made of trials: settings that can begin a state."""

    @property
    def halving(self) -> Halving | None:
        """Rungs of successive halving, if any."""

    def check(self, problem: Problem) -> None:
        """Raise `Unsupported` where it cannot work."""

    def begin(self, problem: Problem, prices: ArchitecturePrices) -> AskTell:
        """Return a fresh state."""


def check_trials(problem: Problem) -> None:
    """Refuse a problem that has nobody to evaluate trials."""
    if problem.evaluator is None or problem.executor is None:
        raise Unsupported(
            "a search by trials needs an evaluator and an executor; give e.g. the evaluator 'train' and the "
            "executor 'serial'."
        )
    if ":" not in problem.evaluator.work:
        raise Unsupported(
            f"the evaluator's work '{problem.evaluator.work}' is no 'module:function'; name a function that workers "
            "can import."
        )


def check_at_least(name: str, value: int, least: int) -> None:
    """Refuse a setting below its minimum."""
    if value < least:
        raise SearchProblem(f"{name}: {value} is too small; give {least} or more.")


def all_failed(judged: Sequence[Judged], what: str) -> SearchProblem:
    """Build the error for a batch of which nothing is left."""
    reasons = [item.result.reason or item.result.status for item in judged]
    common = max(sorted(set(reasons)), key=reasons.count)
    return SearchProblem(
        f"all {len(judged)} {what} failed, most often with: {common}. "
        "Correct the evaluator's settings (data, memory, learning rate) and resume; they are then tried again."
    )

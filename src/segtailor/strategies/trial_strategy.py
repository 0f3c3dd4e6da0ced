"""What all trial strategies share: their protocol, successive halving, checks of settings and common errors."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from segtailor.core.cost import Objective
from segtailor.core.errors import Unsupported
from segtailor.core.strategy import AskTell, Judged, Problem, SearchProblem, Work
from segtailor.strategies.candidates import ArchitecturePrices


@dataclass(frozen=True, kw_only=True)
class Halving:
    """Successive halving (Jamieson and Talwalkar 2016): judge a batch on a small budget, go on with the better part.

    `rungs` are ascending shares of the full budget, `keep` is the share of trials that goes on after each.
    """

    rungs: tuple[float, ...] = (0.25, 0.5)
    keep: float = 0.5

    def __post_init__(self) -> None:
        rising = all(low < high for low, high in zip((0.0, *self.rungs), (*self.rungs, 1.0), strict=True))
        if not self.rungs or not rising:
            raise SearchProblem(
                f"rungs: {self.rungs}; give ascending shares of the full budget between 0 and 1."
            )
        if not 0 < self.keep < 1:
            raise SearchProblem(f"keep: {self.keep}; give a share between 0 and 1.")

    def climbers(self, judged: Sequence[Judged], objective: Objective) -> set[int]:
        """Return the positions of the trials that go on: the best by objective, at least one."""
        done = [index for index, item in enumerate(judged) if item.done]
        best = sorted(
            done, key=lambda index: -float(objective.score(judged[index].quality, judged[index].cost))
        )
        return set(best[: max(1, math.ceil(self.keep * len(done)))])


def budgets(halving: Halving | None, trials: int) -> tuple[float, ...]:
    """Return the budgets that a batch goes through; a single trial gets the full one, as halving has to compare."""
    return (1.0,) if halving is None or trials < 2 else (*halving.rungs, 1.0)


class TrialStrategy(Protocol):
    """A strategy made of trials: settings from which a search state is created."""

    @property
    def halving(self) -> Halving | None:
        """Rungs of successive halving, if any."""

    def check(self, problem: Problem) -> None:
        """Raise `Unsupported` if the strategy cannot work on this problem."""

    def begin(self, problem: Problem, prices: ArchitecturePrices) -> AskTell:
        """Return a new state."""


def check_trials(problem: Problem) -> None:
    """Refuse a problem without evaluator or executor, or whose evaluator workers could not import."""
    if problem.evaluator is None or problem.executor is None:
        raise Unsupported(
            "a search by trials needs an evaluator and an executor; give e.g. the evaluator 'train' and the "
            "executor 'serial'."
        )
    work = problem.evaluator.work
    if not _is_importable(work):
        raise Unsupported(
            f"the evaluator's work '{work_name(work)}' cannot be imported by workers; give a function that is defined "
            "at the top level of a module."
        )


def work_name(work: Work) -> str:
    """Return the name of a function that judges trials as `module:function`."""
    return f"{getattr(work, '__module__', None)}:{getattr(work, '__qualname__', work)}"


def check_at_least(name: str, value: int, least: int) -> None:
    """Refuse a setting below its minimum."""
    if value < least:
        raise SearchProblem(f"{name}: {value} is too small; give {least} or more.")


def all_failed(judged: Sequence[Judged], what: str) -> SearchProblem:
    """Build the error for a batch in which every trial failed."""
    reasons = [item.result.reason or item.result.status for item in judged]
    common = max(sorted(set(reasons)), key=reasons.count)
    return SearchProblem(
        f"all {len(judged)} {what} failed, most often with: {common}. "
        "Correct the evaluator's settings (data, memory, learning rate) and resume; they are then tried again."
    )


def _is_importable(work: Work) -> bool:
    module, _, name = work_name(work).partition(":")
    return getattr(sys.modules.get(module), name, None) is work

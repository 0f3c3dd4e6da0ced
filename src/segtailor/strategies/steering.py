"""Steers the weight of the cost term, so that a search by gradients ends at its budget.

A weight that grows as long as the cost is above the budget is too large when the cost gets there: logits take hundreds
of steps to move, and operators that have lost their probability train no longer and do not come back. So the cost is
led down a path, and only what may move is steered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from segtailor.core.strategy import Problem
from segtailor.strategies.gradient_settings import Gradient

DAMPING = 8.0  # times the share by which the cost is wrong: logarithm of the factor that answers at once
MOST = 0.5  # what is wrong by a larger share counts no more than that
PRESSURE = 7.0  # an adaptive cost weight changes by at most exp(7), about 1000
ARRIVAL = 0.5  # share of the steered steps after which the cost should be at the budget


class Steering:
    """The factor on the cost weight: exp(pressure + excess), what has built up, and what is wrong just now.

    The second damps the first, which alone would swing around the goal. `gain` times the share by which the cost is
    wrong is what builds up in a step.
    """

    gain = 0.0

    def __init__(self, device: torch.device) -> None:
        self.pressure = torch.zeros((), device=device)
        self.excess = torch.zeros((), device=device)

    def factor(self) -> Tensor:
        """Return what the weight is multiplied by."""
        return (self.pressure + self.excess).exp()

    @torch.no_grad()
    def towards(self, goal: Tensor, cost: Tensor, *, bad: Tensor) -> None:
        """Follow a goal for the expected cost by a step; a `bad` step changes nothing."""
        wrong = torch.where(bad, 0.0, (cost / goal - 1).clamp(-MOST, MOST))
        self.pressure.copy_((self.pressure + self.gain * wrong).clamp(-PRESSURE, PRESSURE))
        self.excess.copy_(torch.where(bad, self.excess, DAMPING * wrong))

    def into(self, window: tuple[float, float], shares: Sequence[float]) -> None:
        """Halve the weight where a network's share of the budget is below the window, else double it where above."""
        if min(shares) <= window[0]:
            self.pressure.sub_(math.log(2))
        elif max(shares) >= window[1]:
            self.pressure.add_(math.log(2))
        self.pressure.clamp_(-PRESSURE, PRESSURE)

    def state(self) -> dict[str, Tensor]:
        """Return what has built up as named tensors."""
        return {"pressure": self.pressure, "excess": self.excess}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned; in place, for a recorded step reads it there."""
        self.pressure.copy_(state["pressure"])
        self.excess.copy_(state["excess"])


class Descent:
    """Where the expected cost should be by now.

    It starts where the cost is once everything may move (`begins`, a share of the search), goes down by equal factors
    and reaches the budget half-way through what is left. A cost within the budget is left where it is.
    """

    def __init__(self, limit: float, *, begins: float) -> None:
        self.limit, self.begins = limit, begins
        self.first: float | None = None

    def goal(self, share: float, cost: Callable[[], float]) -> float | None:
        """Return the goal after a `share` of the search, None before steering begins; asks for the `cost` once."""
        if share < self.begins:
            return None
        if self.first is None:
            self.first = cost()
        left = 1 - (share - self.begins) / (ARRIVAL * (1 - self.begins))
        return float(self.limit * max(1.0, self.first / self.limit) ** max(0.0, left))


def descent_of(problem: Problem, settings: Gradient) -> Descent | None:
    """Return the path to the budget of a search that has one and steers by it."""
    if problem.limit is None or not settings.cost.adapt:
        return None
    groups = {decision.group for decision in problem.space.decisions}
    return Descent(problem.limit, begins=max(settings.learning(group).warmup for group in groups))

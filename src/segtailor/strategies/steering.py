"""The weight of the cost term, changed during a gradient search so that it ends at its budget.

A weight that grows as long as the cost is above the budget is too large when the cost reaches it: logits need hundreds
of steps to move, and operators that have lost their probability get no gradient and do not return. So the expected cost
follows a path down to the budget, and the weight is changed only while logits can move.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from segtailor.core.strategy import Problem
from segtailor.strategies.gradient_settings import Gradient

DAMPING = 8.0  # relative error of the cost times this = logarithm of the immediate factor on the weight
MAX_RELATIVE_ERROR = 0.5  # of the cost; larger errors are capped
MAX_PRESSURE = 7.0  # the built-up factor stays between exp(-7) and exp(7), about 1000
ARRIVAL_SHARE = 0.5  # of the steered steps, after which the expected cost should be at the budget


class Steering:
    """The factor on the cost weight: exp(pressure + excess).

    `pressure` adds up `gain` times the relative error of the cost over all steps; `excess` follows the error of the
    last step, which keeps the cost from oscillating around the goal.
    """

    gain = 0.0

    def __init__(self, device: torch.device) -> None:
        self.pressure = torch.zeros((), device=device)
        self.excess = torch.zeros((), device=device)

    def factor(self) -> Tensor:
        """Return the factor on the weight."""
        return (self.pressure + self.excess).exp()

    @torch.no_grad()
    def towards(self, goal: Tensor, cost: Tensor, *, bad: Tensor) -> None:
        """Update the factor by the error of the expected cost; a `bad` step changes nothing."""
        error = torch.where(bad, 0.0, (cost / goal - 1).clamp(-MAX_RELATIVE_ERROR, MAX_RELATIVE_ERROR))
        self.pressure.copy_((self.pressure + self.gain * error).clamp(-MAX_PRESSURE, MAX_PRESSURE))
        self.excess.copy_(torch.where(bad, self.excess, DAMPING * error))

    def into(self, window: tuple[float, float], shares: Sequence[float]) -> None:
        """Halve the weight if a network costs too small a share of the budget, else double it if one costs too much."""
        if min(shares) <= window[0]:
            self.pressure.sub_(math.log(2))
        elif max(shares) >= window[1]:
            self.pressure.add_(math.log(2))
        self.pressure.clamp_(-MAX_PRESSURE, MAX_PRESSURE)

    def state(self) -> dict[str, Tensor]:
        """Return the state as named tensors."""
        return {"pressure": self.pressure, "excess": self.excess}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned, in place: a recorded step reads these tensors."""
        self.pressure.copy_(state["pressure"])
        self.excess.copy_(state["excess"])


class Descent:
    """The path of the expected cost down to the budget.

    It starts at the cost of the moment when all logits may move (`begins`, a share of the search), falls by equal
    factors, and reaches the budget after ARRIVAL_SHARE of the remaining search. If the cost is within the budget
    already, the path stays at the budget.
    """

    def __init__(self, limit: float, *, begins: float) -> None:
        self.limit, self.begins = limit, begins
        self.first: float | None = None

    def goal(self, share: float, cost: Callable[[], float]) -> float | None:
        """Return the goal after a `share` of the search, None before steering begins; calls `cost` once."""
        if share < self.begins:
            return None
        if self.first is None:
            self.first = cost()
        left = 1 - (share - self.begins) / (ARRIVAL_SHARE * (1 - self.begins))
        return float(self.limit * max(1.0, self.first / self.limit) ** max(0.0, left))


def descent_of(problem: Problem, settings: Gradient) -> Descent | None:
    """Return the path to the budget, or none if the search has no budget or does not adapt its weight."""
    if problem.limit is None or not settings.cost.adapt:
        return None
    groups = {decision.group for decision in problem.space.decisions}
    return Descent(problem.limit, begins=max(settings.learning(group).warmup for group in groups))

"""Costs of plans, and objectives that weigh a quality against a cost. Costs are only protocols here; see `costs/`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from segtailor.core.plan import OpCall, Plan

Number: TypeAlias = Any  # float in trials, tensor in gradient search


class Cost(Protocol):
    """The price of a plan in one unit; it depends on the plan alone, not on the space."""

    @property
    def unit(self) -> str:
        """The unit, e.g. ms, MACs, params."""

    def of(self, plan: Plan) -> float:
        """Return the cost of the part of a plan that inference runs."""


class AdditiveCost(Cost, Protocol):
    """A cost that is the sum over calls, which gradient search needs."""

    def price(self, call: OpCall) -> float:
        """Return the cost of one call; `of(plan)` is the sum over `plan.calls`."""


class Objective(Protocol):
    """Scores a quality (0 to 1) at a cost, in the unit of the cost. Arithmetic only: floats and tensors both work."""

    def score(self, quality: Number, cost: Number) -> Number:
        """Return the score; higher is better."""


@dataclass(frozen=True, kw_only=True)
class Linear:
    """`quality - weight * cost`."""

    weight: float

    def score(self, quality: Number, cost: Number) -> Number:
        """Return the score; higher is better."""
        return quality - self.weight * cost


@dataclass(frozen=True, kw_only=True)
class Power:
    """`quality * (cost / limit) ** exponent`, the form of MnasNet and of FasterSeg's branch selection."""

    limit: float
    exponent: float = -0.07

    def score(self, quality: Number, cost: Number) -> Number:
        """Return the score; higher is better."""
        return quality * (cost / self.limit) ** self.exponent


@dataclass(frozen=True, kw_only=True)
class Within:
    """The quality alone; below 0, and so below every quality, if the cost is over the limit.

    Networks that cost less than `least` come after all that use the limit, in the order of their quality: a judge that
    saw a short training only prefers small networks, which learn faster.
    """

    limit: float
    least: float = 0.0

    def score(self, quality: Number, cost: Number) -> Number:
        """Return the score; higher is better."""
        if cost > self.limit:
            return -cost / self.limit
        return quality if cost >= self.least else quality - 1

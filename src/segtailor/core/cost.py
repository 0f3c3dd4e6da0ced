"""What a plan costs, in one unit. Measured costs live elsewhere; these are only the protocols."""

from __future__ import annotations

from typing import Protocol

from segtailor.core.plan import OpCall, Plan


class Cost(Protocol):
    """Price of a plan. Knows plans, not spaces."""

    @property
    def unit(self) -> str:
        """The unit, e.g. ms, MACs, params."""

    def of(self, plan: Plan) -> float:
        """Return the cost of what inference runs."""


class AdditiveCost(Cost, Protocol):
    """A cost that is the sum over calls, which gradient search needs."""

    def price(self, call: OpCall) -> float:
        """Return the cost of one call; `of(plan)` is the sum over `plan.calls`."""

"""Architectures and operators priced once: measuring twice would let noise change decisions already made."""

from __future__ import annotations

import math
from collections.abc import Callable

from segtailor.core.errors import MissingCost
from segtailor.core.plan import OpCall
from segtailor.core.space import Architecture, fingerprint_of
from segtailor.core.strategy import Problem
from segtailor.nets.mixed import Price


class ArchitecturePrices:
    """The cost of architectures by fingerprint. `known` is saved with the search and restored on resume."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.known: dict[str, float] = {}

    def __call__(self, arch: Architecture) -> float:
        """Return the cost of an architecture; a cost that is no number is an error, not a bargain."""
        key = fingerprint_of(arch)
        if key not in self.known:
            price = float(self._problem.price(arch))
            if not math.isfinite(price) or price < 0:
                raise MissingCost(
                    f"the cost of architecture {key} is {price} {self._problem.cost.unit}; a cost must be a finite "
                    "number of at least 0. Check the latency source, or calibrate it again."
                )
            self.known[key] = price
        return self.known[key]


def remembered(price: Callable[[OpCall], float]) -> Price:
    """Look each call up once: supernets ask for the same prices at every step."""
    known: dict[OpCall, float] = {}

    def look_up(call: OpCall) -> float:
        if call not in known:
            known[call] = float(price(call))
        return known[call]

    return look_up

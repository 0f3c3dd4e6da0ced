"""What a quality is worth at a cost: arithmetic only, so floats and tensors both work. Higher is better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

Number: TypeAlias = Any  # float in trials, tensor in gradient search


class Objective(Protocol):
    """Scores a quality (0..1) at a cost (in the cost's unit)."""

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
    """Quality alone, and worse than anything once the cost is over the limit."""

    limit: float

    def score(self, quality: Number, cost: Number) -> Number:
        """Return the score; higher is better."""
        return quality if cost <= self.limit else -cost / self.limit

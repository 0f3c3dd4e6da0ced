"""Learning-rate schedules as pure functions of progress: factors on the base rate."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from segtailor.core.errors import UserError

ScheduleKind: TypeAlias = Literal["poly", "exponential", "cosine", "step", "constant"]


def poly(progress: float, *, power: float = 0.9) -> float:
    """Return `(1 - progress) ** power`."""
    return math.pow(1 - progress, power)


def exponential(epochs: float, *, gamma: float) -> float:
    """Return `gamma ** epochs`, smoothly also within an epoch."""
    return math.pow(gamma, epochs)


def cosine(progress: float, *, final: float = 0.0) -> float:
    """Return half a cosine from 1 down to `final`."""
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress))


def step(progress: float, *, milestones: Sequence[float], gamma: float) -> float:
    """Return `gamma` to the number of milestones reached; milestones are shares of the run in ascending order."""
    return math.pow(gamma, bisect_right(milestones, progress))


def warm_up(done: int, *, steps: int, start: float = 0.0) -> float:
    """Return the line from `start` to 1 over `steps` steps, and 1 from then on."""
    return 1.0 if done >= steps else start + (1 - start) * done / steps


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """One schedule: the kind, its parameters, and a linear warm-up of `warmup` steps before it."""

    kind: ScheduleKind = "poly"
    power: float = 0.9  # poly
    reach: float = (
        1.0  # poly: share of the curve that the run covers, below 1 where it stops before the rate is 0
    )
    gamma: float = 0.98  # exponential: per epoch; step: per milestone
    milestones: tuple[float, ...] = (0.6, 0.85)  # step: shares of the run
    final: float = 0.0  # cosine: the last factor
    warmup: int = 0
    warmup_start: float = 0.0

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise UserError(
                f"schedule.warmup: {self.warmup} is negative; give a number of steps, 0 for none."
            )
        if list(self.milestones) != sorted(self.milestones) or not all(0 < m < 1 for m in self.milestones):
            raise UserError(
                f"schedule.milestones: {self.milestones} must ascend between 0 and 1, e.g. (0.6, 0.85)."
            )
        if not 0 < self.reach <= 1:
            raise UserError(f"schedule.reach: {self.reach} is no share of the curve; give 0 to 1, e.g. 0.75.")
        if not self.gamma > 0:
            raise UserError(f"schedule.gamma: {self.gamma} must be above 0.")

    def factor(self, done: int, *, total: int, steps_per_epoch: int) -> float:
        """Return the factor on the base rate for the step after `done` of `total` steps."""
        if done < self.warmup:
            return warm_up(done, steps=self.warmup, start=self.warmup_start)
        after = done - self.warmup
        progress = min(1.0, after / max(1, total - self.warmup))
        factors = {
            "poly": lambda: poly(self.reach * progress, power=self.power),
            "exponential": lambda: exponential(after / steps_per_epoch, gamma=self.gamma),
            "cosine": lambda: cosine(progress, final=self.final),
            "step": lambda: step(progress, milestones=self.milestones, gamma=self.gamma),
            "constant": lambda: 1.0,
        }
        return factors[self.kind]()

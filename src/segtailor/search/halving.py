"""Successive halving (Jamieson and Talwalkar 2016): judge a batch cheaply, go on with the better part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from segtailor.core.cost import Objective
from segtailor.core.strategy import Judged, SearchProblem


@dataclass(frozen=True, kw_only=True)
class Halving:
    """Rungs of budget before the full one, ascending, and the share that climbs each; an option of any strategy."""

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
    """Return the budgets a batch goes through; a single trial has nobody to be compared with."""
    return (1.0,) if halving is None or trials < 2 else (*halving.rungs, 1.0)

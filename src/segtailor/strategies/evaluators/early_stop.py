"""Whether an architecture is worth its second stage: the running mean of first rewards, and chance (auxiliary cells).

Workers remember nothing: the driver folds results into `mean` and `count` and tells them to every trial.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from segtailor.core.codec import Json
from segtailor.core.errors import UserError
from segtailor.core.strategy import TrialResult

REWARD = "stage1"  # the metric that is compared


@dataclass(frozen=True, kw_only=True)
class EarlyStop:
    """Go on if the reward is above the running mean, else only with a probability that is annealed.

    The probability starts at `start` and is multiplied by `factors` when as many architectures as `milestones` were
    judged. `probability` is the paper's rule; `slack` that of the authors' program, which goes on if the reward is
    above `mean * (1 - u)` with u uniform from 0 to the annealed value. `every` trials are told the same mean.
    """

    rule: Literal["probability", "slack"] = "probability"
    start: float = 0.9
    milestones: tuple[int, ...] = (100, 200, 300, 400)
    factors: tuple[float, ...] = (0.9, 0.8, 0.7, 0.6)
    decay: float = 0.99
    every: int = 1

    def __post_init__(self) -> None:
        shares = (self.start, self.decay, *self.factors)
        if not all(0 <= share <= 1 for share in shares) or len(self.factors) != len(self.milestones):
            raise UserError(
                f"early_stop: start {self.start}, decay {self.decay} and factors {self.factors} must be from 0 to 1, "
                "with one factor per milestone."
            )
        if self.every < 1:
            raise UserError(f"early_stop.every: {self.every} is too small; give 1 or more trials.")

    def begin(self) -> Mapping[str, Json]:
        """Return what is known before the first trial."""
        return {"count": 0, "mean": None}

    def learn(self, known: Mapping[str, Json], result: TrialResult) -> Mapping[str, Json]:
        """Take one more first reward into the mean; the first one starts it."""
        reward, mean, count = result.metrics.get(REWARD), known["mean"], known["count"]
        if reward is None or not isinstance(count, int):
            return known
        moved = reward if not isinstance(mean, float) else self.decay * mean + (1 - self.decay) * reward
        return {"count": count + 1, "mean": float(moved)}

    def chance(self, count: int) -> float:
        """Return the annealed probability after `count` architectures."""
        chance = self.start
        for milestone, factor in zip(self.milestones, self.factors, strict=True):
            chance *= factor if count >= milestone else 1.0
        return chance

    def goes_on(self, reward: float, known: Mapping[str, Json], draw: float) -> bool:
        """Decide; `draw` is uniform from 0 to 1. Without a mean everything goes on."""
        mean, count = known.get("mean"), known.get("count", 0)
        if not isinstance(mean, float) or not isinstance(count, int):
            return True
        if self.rule == "slack":
            moved = self.decay * mean + (1 - self.decay) * reward
            return reward > moved * (1 - draw * self.chance(count))
        return reward > mean or draw < self.chance(count)

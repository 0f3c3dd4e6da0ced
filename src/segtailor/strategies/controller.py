"""The strategy `controller`: an LSTM draws architectures and is trained on their rewards by PPO.

After Nekrasov et al. (CVPR 2019, auxiliary cells); the defaults are those of the authors' program. It works on the
decisions of any space. This file holds the settings and the search state, `policy.py` the network and its training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from segtailor.core.codec import Json
from segtailor.core.job import Job
from segtailor.core.space import Picks
from segtailor.core.strategy import Candidate, Judged, Problem, SearchProblem
from segtailor.strategies.candidates import ArchitecturePrices, Draws
from segtailor.strategies.trial_strategy import Halving, all_failed, check_at_least, check_trials
from segtailor.strategies.trials import TrialSearch

if TYPE_CHECKING:
    from segtailor.strategies.policy import PolicyLearner

MAX_DRAWS = 64  # from the policy, before a random architecture is taken instead
FAILED_REWARD = 0.0  # of an architecture that could not be trained, as published


@dataclass(frozen=True, kw_only=True)
class Controller:
    """Draw architectures from an LSTM and teach it by PPO; the reward is the problem's objective.

    `batch` architectures are evaluated at a time. After each one the policy is trained on the last `buffer`
    architectures, `epochs` times in random order, `minibatch` per step. `baseline_decay` is the decay of the moving
    average of rewards, `entropy` the weight of an entropy bonus. `feedback` lets the LSTM read its own choices, which
    the published one does not.
    """

    trials: int = 200
    batch: int = 1
    lr: float = 1e-4
    clip: float = 0.1
    buffer: int = 100
    minibatch: int = 1
    epochs: int = 1
    baseline_decay: float = 0.95
    entropy: float = 0.0
    gradient_clip: float = 2.0
    hidden: int = 100
    layers: int = 2
    warmup: int = 4
    feedback: bool = False
    halving: Halving | None = None

    def __post_init__(self) -> None:
        for name in ("trials", "batch", "buffer", "minibatch", "epochs", "hidden", "layers"):
            check_at_least(name, getattr(self, name), 1)
        check_at_least("warmup", self.warmup, 0)
        for name in ("lr", "clip", "gradient_clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise SearchProblem(f"{name}: {getattr(self, name)}; give a number above 0.")
        if not 0 <= self.baseline_decay < 1:
            raise SearchProblem(f"baseline_decay: {self.baseline_decay}; give 0 up to below 1, e.g. 0.95.")
        if not 0 <= self.entropy < math.inf:
            raise SearchProblem(f"entropy: {self.entropy} is no weight; give 0 for none, or e.g. 0.001.")

    def check(self, problem: Problem) -> None:
        """Refuse what cannot work."""
        check_trials(problem)

    def job(self, problem: Problem) -> Job:
        """Return the search as a job."""
        return TrialSearch(self, problem)

    def begin(self, problem: Problem, prices: ArchitecturePrices) -> ControllerState:
        """Return a new state."""
        return ControllerState(self, problem, prices)


class ControllerState:
    """The learner, and the draws whose rewards are not known yet."""

    def __init__(self, settings: Controller, problem: Problem, prices: ArchitecturePrices) -> None:
        from segtailor.strategies.policy import PolicyLearner

        self.expected: int | None = settings.trials
        self._settings = settings
        self._space = problem.space
        self._score = problem.objective.score
        self._rng = Random(problem.seed)
        self._draws = Draws(problem, prices, self._rng)
        self._learner: PolicyLearner = PolicyLearner(settings, problem.space.decisions, problem.seed)
        self._drawn: list[tuple[tuple[int, ...], float]] = []  # choices and log-probability of the last batch
        self._asked = 0
        self._succeeded = False

    def ask(self) -> Sequence[Candidate]:
        """Return the next draws; fewer or none if the trials or the space are used up."""
        count = min(self._settings.batch, self._settings.trials - self._asked)
        self._drawn = []
        batch: list[Candidate] = []
        while len(batch) < count:
            candidate = self._draw() or self._fallback()
            if candidate is None:
                self._asked = self._settings.trials  # the space has no more
                break
            batch.append(candidate)
        self._asked += len(batch)
        return batch

    def tell(self, judged: Sequence[Judged]) -> None:
        """Train the policy on the rewards, in the order asked."""
        from segtailor.strategies.policy import Experience

        self._succeeded |= any(item.done for item in judged)
        if not self._succeeded:
            raise all_failed(judged, "architectures")
        for item, (actions, log_prob) in zip(judged, self._drawn, strict=True):
            self._learner.learn(Experience(actions, log_prob, self._reward(item)))

    def summary(self) -> Mapping[str, Json]:
        """Return the baseline and the entropy of the policy."""
        return {"baseline": self._learner.baseline, "entropy": self._learner.entropy()}

    def keep(self) -> Callable[[Path], None]:
        """Return a function that writes the state as it is now; see `core.strategy.Keeping`."""
        price, picks = self._draws.cheapest
        cheapest: list[Json] = [price if math.isfinite(price) else None, dict(picks)]
        version, numbers, gauss = self._rng.getstate()
        return self._learner.keep(
            {"asked": self._asked, "rng": [version, list(numbers), gauss], "cheapest": cheapest}
        )

    def restore(self, folder: Path, judged: Sequence[Judged]) -> None:
        """Read a state that has been told `judged`."""
        counters = self._learner.restore(folder)
        self._asked = counters["asked"]
        version, numbers, gauss = counters["rng"]
        self._rng.setstate((version, tuple(numbers), gauss))
        price, picks = counters["cheapest"]
        proposed = [item.candidate.architecture for item in judged]
        self._draws.remember(proposed, cheapest=(math.inf if price is None else price, picks))
        self._succeeded = any(item.done for item in judged)

    def _draw(self) -> Candidate | None:
        """Draw from the policy until an architecture is new, within the budget and can be built."""
        for _ in range(MAX_DRAWS):
            actions, log_prob = self._learner.draw()
            candidate = self._draws.accept(self._picks(actions))
            if candidate is not None:
                self._drawn.append((actions, log_prob))
                return candidate
        return None

    def _fallback(self) -> Candidate | None:
        """Return a random new architecture; it is an error if there never was any."""
        candidate = self._draws.fresh()
        if candidate is None:
            if not self._asked and not self._drawn:
                raise self._draws.nothing()
            return None
        picks = self._space.picks(candidate.architecture)
        actions = tuple(picks[decision.name] for decision in self._space.decisions)
        self._drawn.append((actions, self._learner.log_prob(actions)))
        return candidate

    def _picks(self, actions: Sequence[int]) -> Picks:
        return {
            decision.name: choice for decision, choice in zip(self._space.decisions, actions, strict=True)
        }

    def _reward(self, item: Judged) -> float:
        if item.result.quality is None:
            return FAILED_REWARD
        return float(self._score(item.quality, item.cost))

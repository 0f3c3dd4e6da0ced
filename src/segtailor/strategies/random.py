"""Random search: the baseline for all other strategies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from segtailor.core.codec import Json
from segtailor.core.job import Job
from segtailor.core.strategy import Candidate, Judged, Problem
from segtailor.strategies.candidates import ArchitecturePrices, Draws
from segtailor.strategies.trial_strategy import Halving, all_failed, check_at_least, check_trials
from segtailor.strategies.trials import TrialSearch


@dataclass(frozen=True, kw_only=True)
class RandomSearch:
    """Judge distinct random architectures within the budget."""

    trials: int = 64
    halving: Halving | None = None

    def __post_init__(self) -> None:
        check_at_least("trials", self.trials, 1)

    def check(self, problem: Problem) -> None:
        """Refuse what cannot work."""
        check_trials(problem)

    def job(self, problem: Problem) -> Job:
        """Return the search as a job."""
        return TrialSearch(self, problem)

    def begin(self, problem: Problem, prices: ArchitecturePrices) -> RandomState:
        """Return a new state."""
        return RandomState(self, Draws(problem, prices, Random(problem.seed)))


class RandomState:
    """All candidates are one batch: nothing is learned from results."""

    def __init__(self, settings: RandomSearch, draws: Draws) -> None:
        self.expected: int | None = settings.trials
        self._draws = draws
        self._asked = False

    def ask(self) -> Sequence[Candidate]:
        """Return all candidates, fewer if the space has fewer."""
        if self._asked:
            return ()
        self._asked = True
        batch = self._draws.several(self.expected or 1)
        self.expected = len(batch)
        return batch

    def tell(self, judged: Sequence[Judged]) -> None:
        """Accept the results; it is an error if all trials failed."""
        if not any(item.done for item in judged):
            raise all_failed(judged, "trials")

    def summary(self) -> Mapping[str, Json]:
        """Nothing besides trials and front."""
        return {}

"""One trial after the other in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from segtailor.core.strategy import Pool, Trial, TrialResult
from segtailor.strategies.worker import decode, encode, perform


@dataclass(frozen=True, kw_only=True)
class Serial:
    """One trial after the other in this process."""

    device: str = "cpu"

    @contextmanager
    def open(self, work: str) -> Iterator[Pool]:
        """Nothing to start."""
        yield SerialPool(work=work, device=self.device)


@dataclass(frozen=True, kw_only=True)
class SerialPool:
    """This process."""

    work: str
    device: str
    slots: int = 1

    def run(self, trials: Sequence[Trial]) -> Iterator[TrialResult]:
        """Evaluate in the order given; messages are encoded as for any other executor, so that results are equal."""
        for trial in trials:
            yield decode(perform(self.work, encode(trial), self.device))

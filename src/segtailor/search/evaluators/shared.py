"""Judging without training: an architecture takes its slice of a trained supernet's weights. The protocol only."""

from __future__ import annotations

from typing import Any, Protocol

from segtailor.core.space import Architecture
from segtailor.core.strategy import Trial, TrialResult


class SharedWeights(Protocol):
    """A trained supernet that hands out slices, kept by a worker between trials."""

    def transfer(self, arch: Architecture, network: Any) -> None:
        """Copy the shared weights that `arch` uses into `network`."""


class SharedEvaluator(Protocol):
    """Judges a trial on the half of training data that shaped no weight; `trial.budget` is the share of images."""

    def judge(self, trial: Trial, *, weights: SharedWeights, device: str) -> TrialResult:
        """Slice, calibrate norms, score."""

"""Judging without training: an architecture takes its slice of a saved supernet's weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from segtailor.core.errors import RunProblem, Unsupported
from segtailor.core.plan import Shape
from segtailor.core.space import parse_architecture
from segtailor.core.strategy import SearchProblem, Trial, TrialResult
from segtailor.strategies.evaluators.train import HalvedPixels
from segtailor.strategies.gradient_settings import Choice
from segtailor.strategies.halved_pixels import FIT_STREAM, half_batches
from segtailor.strategies.saved_supernet import load_supernet, read_facts
from segtailor.strategies.shared_judge import SharedJudge


@dataclass(frozen=True, kw_only=True)
class SharedEvaluator:
    """Score on the half that trained no weight, after measuring norms again on `recalibrate` batches of the other.

    `supernet` is the folder of a saved supernet. With `images` only the first of the half count; a trial's budget is
    the share of them.
    """

    supernet: str
    recalibrate: int = 8
    images: int | None = None

    def __post_init__(self) -> None:
        if self.recalibrate < 0 or (self.images is not None and self.images < 1):
            raise SearchProblem("shared: recalibrate must be 0 or more, images 1 or more.")

    def judge(self, trial: Trial, *, weights: SharedJudge) -> TrialResult:
        """Slice, measure norms, score; an architecture that uses a removed candidate is a failed trial."""
        arch = parse_architecture(dict(trial.architecture))
        try:
            scores = weights.scores(arch, share=trial.budget)
        except Unsupported as problem:
            return trial.failed(str(problem))
        return trial.done(scores.quality, **scores.figures())

    def open(self, *, data: HalvedPixels, device: torch.device, expected: str) -> SharedJudge:
        """Load the supernet whose fingerprint is `expected`, for any number of trials."""
        folder = Path(self.supernet)
        facts = read_facts(folder)
        if facts.fingerprint != expected:
            raise RunProblem(
                f"the supernet in {folder} has changed since this search began; start one in another folder."
            )
        choice = Choice(recalibrate=self.recalibrate, images=self.images)
        settings = replace(facts.strategy, choice=choice)
        image = Shape(3, *facts.image)
        return SharedJudge(
            settings=settings,
            space=facts.build_space(),
            task=facts.task,
            image=image,
            supernet=load_supernet(folder, facts),
            batches=half_batches(
                data.fit, settings, image=image, seed=facts.seed, stream=FIT_STREAM, device=device
            ),
            pictures=data.judge,
            device=device,
        )

"""The evaluator `train`: a short training on one half of the training split, the task's main score on the other."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import torch

from segtailor.core.plan import MAIN
from segtailor.core.space import Architecture, parse_architecture
from segtailor.core.strategy import Trial, TrialResult
from segtailor.core.task import Preprocessing
from segtailor.data.augment import Augment
from segtailor.data.batches import batches_of
from segtailor.nets.network import Network, build, initialise
from segtailor.nets.reparam import with_branches
from segtailor.strategies.halves import HalvedPixels
from segtailor.training.fit import Fit
from segtailor.training.settings import FitSettings

Start: TypeAlias = Callable[[Network], Collection[str]]
Build: TypeAlias = Callable[[Architecture, int, int], Network]  # architecture, classes, seed

SHORT_FIT = FitSettings(
    steps=40, batch=8, optimiser="adamw"
)  # where a recipe has no short training of its own


@dataclass(frozen=True, kw_only=True)
class TrainEvaluator:
    """Train for `fit.steps` or `fit.epochs` times the trial's budget, with the trial's seed.

    The learning rate follows its whole schedule, also on a smaller budget. `reparameterise` trains the branched form of
    blocks that have one. `auxiliary` also trains the outputs that only training needs.
    """

    augment: Augment
    fit: FitSettings = field(default_factory=FitSettings)
    reparameterise: bool = False
    auxiliary: bool = True
    preprocessing: Preprocessing = field(default_factory=Preprocessing)

    def judge(
        self,
        trial: Trial,
        *,
        data: HalvedPixels,
        device: torch.device,
        build: Build | None = None,
        start: Start | None = None,
    ) -> TrialResult:
        """Train the trial's architecture and return its quality on the half that trained no weight.

        `start` gives the network its first weights, and returns the names of those it gave.
        """
        arch = parse_architecture(dict(trial.architecture))
        settings = self._settings(trial, images=len(data.fit))
        network = (build or self._network)(arch, data.task.outputs, trial.seed)
        carried = start(network) if start is not None else frozenset[str]()
        if self.reparameterise and build is None:
            network = with_branches(network, seed=trial.seed)
        fit = Fit(
            network=network,
            batches=batches_of(data.fit, self.augment, self.preprocessing, device=device),
            settings=settings,
            task=data.task,
            device=device,
            validation=data.judge,
            preprocessing=self.preprocessing,
            carried=carried,
        )
        for _ in fit.steps():
            pass
        if fit.scores is None:
            return trial.failed(
                "training ended without a score; check that the training split has two halves"
            )
        return trial.done(fit.scores.quality, **fit.scores.figures(), steps=float(fit.done))

    def _settings(self, trial: Trial, *, images: int) -> FitSettings:
        total = self.fit.total(-(-images // self.fit.batch))
        steps = max(1, round(total * trial.budget))
        return replace(self.fit, steps=steps, seed=trial.seed, validate_every=0)

    def _network(self, arch: Architecture, classes: int, seed: int) -> Network:
        outputs = "all" if self.auxiliary else (MAIN,)
        network = build(arch, classes, outputs=outputs, channels=self.preprocessing.channels)
        initialise(network, seed)
        return network

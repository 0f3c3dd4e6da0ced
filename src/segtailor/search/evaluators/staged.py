"""Judging in two stages (auxiliary cells, section 3.2): the decoder on pre-computed maps, then all of it end to end.

The first stage is cheap and tells bad from good; whether the second is worth it, the running mean decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random

import torch

from segtailor.core.errors import Unsupported, UserError
from segtailor.core.plan import MAIN
from segtailor.core.space import parse_architecture
from segtailor.core.strategy import Trial, TrialResult
from segtailor.core.task import Task
from segtailor.data.augment import Augment
from segtailor.data.batches import batches_of
from segtailor.nets.build import build
from segtailor.nets.inference import inference, normalise
from segtailor.nets.network import Network, initialise
from segtailor.nets.teacher import Teacher
from segtailor.search.evaluators.early_stop import EarlyStop
from segtailor.search.evaluators.features import (
    FeatureStores,
    FixedEncoder,
    Wanted,
    fit_rows,
    judge_rows,
    stores,
    teacher_rows,
)
from segtailor.search.evaluators.first_stage import JUDGED_AT_ONCE, FirstStage, Maps, count
from segtailor.search.evaluators.train import HalvedPixels
from segtailor.tasks import LossSettings, Scores, kind_of
from segtailor.training.distill import DistillSettings
from segtailor.training.fit import Fit
from segtailor.training.settings import EncoderSettings, FitSettings, Schedule

STAGE1 = FitSettings(
    epochs=5, batch=64, optimiser="adam", lr=3e-3, weight_decay=1e-5, clip=3.0, ema=0.9, ema_warmup=False,
    schedule=Schedule(kind="constant"), loss=LossSettings(auxiliary_default=0.15),
    distill=DistillSettings(kind="l2", weight=0.3),
)  # fmt: skip
STAGE2 = FitSettings(
    epochs=1, batch=32, optimiser="adam", lr=3e-3, weight_decay=1e-5, clip=3.0, ema=0.99, ema_warmup=False,
    schedule=Schedule(kind="constant"), loss=LossSettings(auxiliary_default=0.15, resize="labels"),
    encoder=EncoderSettings(),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class StagedEvaluator:
    """Two short trainings; the quality is the reward of the last one reached.

    `images` crops by `features` are augmented once, and their maps are what `stage1` trains the decoder on; `stage2`,
    where given, trains everything on crops by `augment`. A stage whose auxiliary coefficient is 0 is trained without
    auxiliary outputs. `teacher` (see `nets.teacher`) is followed in the first stage. `judge` is the size of the central
    crops that are scored; the class called `background` counts in the matrix but in none of the averages.
    `average_each_epoch` continues the first stage from its averaged weights, as the authors' program does.
    """

    features: Augment
    augment: Augment
    judge: tuple[int, int]
    images: int = 4000
    stage1: FitSettings = field(default_factory=lambda: STAGE1)
    stage2: FitSettings | None = field(default_factory=lambda: STAGE2)
    teacher: str | None = None
    early_stop: EarlyStop | None = field(default_factory=EarlyStop)
    average_each_epoch: bool = False
    background: str | None = "background"
    encoder_weights: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.images < 2 or self.stage1.batch < 2:
            raise UserError(
                f"staged: {self.images} images in batches of {self.stage1.batch} are too few; norms need at least 2."
            )
        if self.stage1.precision == "fp16":
            raise UserError(
                "staged.stage1.precision: fp16 needs loss scaling, which it does not do; use bf16."
            )
        if min(self.judge) < 1:
            raise UserError(f"staged.judge: {self.judge} is empty; give height and width in pixels.")

    def stores(
        self, root: Path, encoder: FixedEncoder, data: HalvedPixels, teacher: Teacher | None
    ) -> FeatureStores:
        """Say which files the first stage needs."""
        wanted, halves = self._wanted, (data.fit, data.judge)
        return stores(root, encoder, halves, wanted, classes=data.task.outputs, teacher=teacher)

    def open(
        self, files: FeatureStores, encoder: FixedEncoder, data: HalvedPixels, *,
        device: torch.device, teacher: Teacher | None,
    ) -> Maps:  # fmt: skip
        """Map the files; what is missing is computed now, by one process while the others wait."""
        wanted = self._wanted
        fit = files.fit.open(partial(fit_rows, encoder, data.fit, wanted, device=device))
        judge = files.judge.open(partial(judge_rows, encoder, data.judge, wanted, device=device))
        logits = None
        if files.teacher is not None and teacher is not None:
            size = fit["labels"].shape[1:]
            rows = partial(teacher_rows, teacher, encoder, data.fit, wanted, size=size, device=device)
            logits = files.teacher.open(rows)["logits"]
        return Maps(fit, judge, logits).on(device)

    def run(
        self, trial: Trial, *, data: HalvedPixels, encoder: FixedEncoder, maps: Maps, device: torch.device
    ) -> TrialResult:
        """Judge a trial."""
        network = self._network(trial, encoder, data.task.outputs).to(device)
        first = FirstStage(self, network, encoder, data.task, maps, device)
        first.train(trial)
        metrics = {"stage1": (found := first.score()).reward}
        if self.stage2 is not None:
            if not self._goes_on(trial, found.reward):
                return trial.stopped(
                    found.reward, "not above the running mean after the first stage", **metrics
                )
            found = self._second(trial, network, encoder, data=data, maps=maps, device=device)
            metrics["stage2"] = found.reward
        return trial.done(found.reward, **metrics, **found.figures())

    def without(self, task: Task) -> tuple[int, ...]:
        """Return the class that is left out of the averages."""
        return tuple(index for index, name in enumerate(task.classes) if name == self.background)

    @property
    def _wanted(self) -> Wanted:
        return Wanted(self.features, self.images, self.judge, self.seed)

    def _network(self, trial: Trial, encoder: FixedEncoder, classes: int) -> Network:
        arch = parse_architecture(dict(trial.architecture))
        helped = self.stage1.loss.auxiliary_default or self.stage1.loss.auxiliary
        network = build(arch, classes, outputs="all" if helped else (MAIN,))
        initialise(network, trial.seed)
        encoder.fill(network)
        return network

    def _goes_on(self, trial: Trial, reward: float) -> bool:
        if self.early_stop is None or trial.budget < 1:
            return True
        return self.early_stop.goes_on(reward, trial.context, Random(trial.seed).random())

    def _second(
        self, trial: Trial, network: Network, encoder: FixedEncoder, *,
        data: HalvedPixels, maps: Maps, device: torch.device,
    ) -> Scores:  # fmt: skip
        """Train everything end to end with new optimisers; score the averaged weights."""
        if self.stage2 is None:
            raise Unsupported("there is no second stage")
        total = self.stage2.total(max(1, len(data.fit) // self.stage2.batch))
        settings = replace(self.stage2, steps=max(1, round(total * trial.budget)), seed=trial.seed)
        fit = Fit(
            network=network,
            batches=batches_of(data.fit, self.augment, encoder.preprocessing, device=device),
            settings=settings,
            task=data.task,
            device=device,
            preprocessing=encoder.preprocessing,
        )
        for _ in fit.steps():
            pass
        network.load_state_dict(fit.weights())
        meter = kind_of(data.task).meter(data.task, device)
        with inference(network):
            for start in range(0, len(maps.judge["labels"]), JUDGED_AT_ONCE):
                here = slice(start, start + JUDGED_AT_ONCE)
                batch = normalise(maps.judge["images"][here], encoder.preprocessing, device)
                count(meter, network(batch), maps.judge["labels"][here], task=data.task, device=device)
        return meter.scores(without=self.without(data.task))

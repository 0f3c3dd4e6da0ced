"""The evaluator `staged` (auxiliary cells, section 3.2): train the decoder on cached maps, then everything end to end.

The first stage is cheap. Whether the second is worth its time is decided by comparing the reward of the first with the
running mean of earlier ones (`EarlyStop`). Workers have no memory: the driver computes `mean` and `count` from all
results and sends them with every trial.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Literal

import torch

from segtailor.core.codec import Json
from segtailor.core.errors import Unsupported, UserError
from segtailor.core.plan import MAIN
from segtailor.core.space import parse_architecture
from segtailor.core.strategy import Trial, TrialResult
from segtailor.core.task import Task
from segtailor.data.augment import Augment
from segtailor.data.batches import batches_of
from segtailor.nets.inference import inference, normalise
from segtailor.nets.network import Network, build, initialise
from segtailor.nets.teacher import Teacher
from segtailor.strategies.evaluators.features import (
    CropSettings,
    FeatureStores,
    FixedEncoder,
    fit_rows,
    judge_rows,
    stores,
    teacher_rows,
)
from segtailor.strategies.evaluators.first_stage import JUDGE_BATCH, FirstStage, Maps, count
from segtailor.strategies.halves import HalvedPixels
from segtailor.tasks import LossSettings, Scores, kind_of
from segtailor.training.distill import DistillSettings
from segtailor.training.fit import Fit
from segtailor.training.settings import EncoderSettings, FitSettings, Schedule

REWARD = "stage1"  # the metric that is compared with its running mean
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
class EarlyStop:
    """Go on if the reward is above the running mean, else only with a probability that is annealed.

    The probability starts at `start` and is multiplied by each of `factors` once as many architectures as the matching
    one of `milestones` were judged. The rule `probability` is the paper's. `slack` is that of the authors' program,
    which goes on if the reward is above `mean * (1 - u)`, with u uniform from 0 to the annealed value. Every `every`
    trials the mean that trials get is updated.
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
        """Update the mean with the reward of one more first stage; the first reward starts it."""
        reward, mean, count = result.metrics.get(REWARD), known["mean"], known["count"]
        if reward is None or not isinstance(count, int):
            return known
        updated = reward if not isinstance(mean, float) else self.decay * mean + (1 - self.decay) * reward
        return {"count": count + 1, "mean": float(updated)}

    def chance(self, count: int) -> float:
        """Return the annealed probability after `count` architectures."""
        chance = self.start
        for milestone, factor in zip(self.milestones, self.factors, strict=True):
            chance *= factor if count >= milestone else 1.0
        return chance

    def goes_on(self, reward: float, known: Mapping[str, Json], draw: float) -> bool:
        """Tell whether a trial goes on; `draw` is uniform from 0 to 1. Without a mean every trial does."""
        mean, count = known.get("mean"), known.get("count", 0)
        if not isinstance(mean, float) or not isinstance(count, int):
            return True
        if self.rule == "slack":
            updated = self.decay * mean + (1 - self.decay) * reward
            return reward > updated * (1 - draw * self.chance(count))
        return reward > mean or draw < self.chance(count)


@dataclass(frozen=True, kw_only=True)
class StagedEvaluator:
    """Two short trainings; the quality is the reward of the last stage that was reached.

    `images` crops by `features` are augmented once, and `stage1` trains the decoder on their maps. `stage2`, if given,
    trains everything on crops by `augment`. A stage whose auxiliary coefficient is 0 is trained without auxiliary
    outputs. The first stage distils from `teacher` (see `nets.teacher`), if there is one. `judge` is the size of the
    central crops that are scored; the class called `background` counts in the confusion matrix but in none of the
    averages. `average_each_epoch` continues the first stage from its averaged weights, as the authors' program does.
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
        """Return the files that the first stage needs; nothing is computed."""
        crop_settings, halves = self._crop_settings, (data.fit, data.judge)
        return stores(root, encoder, halves, crop_settings, classes=data.task.outputs, teacher=teacher)

    def open(
        self, files: FeatureStores, encoder: FixedEncoder, data: HalvedPixels, *,
        device: torch.device, teacher: Teacher | None,
    ) -> Maps:  # fmt: skip
        """Memory-map the files; missing ones are computed now, by one process while the others wait."""
        crops = self._crop_settings
        fit = files.fit.open(partial(fit_rows, encoder, data.fit, crops, device=device))
        judge = files.judge.open(partial(judge_rows, encoder, data.judge, crops, device=device))
        logits = None
        if files.teacher is not None and teacher is not None:
            size = fit["labels"].shape[1:]
            rows = partial(teacher_rows, teacher, encoder, data.fit, crops, size=size, device=device)
            logits = files.teacher.open(rows)["logits"]
        return Maps(fit, judge, logits).on(device)

    def run(
        self, trial: Trial, *, data: HalvedPixels, encoder: FixedEncoder, maps: Maps, device: torch.device
    ) -> TrialResult:
        """Judge a trial by one or two stages."""
        network = self._network(trial, encoder, data.task.outputs).to(device)
        first = FirstStage(self, network, encoder, data.task, maps, device)
        first.train(trial)
        scores = first.score()
        metrics = {REWARD: scores.reward}
        if self.stage2 is not None:
            if not self._goes_on(trial, scores.reward):
                return trial.stopped(
                    scores.reward, "not above the running mean after the first stage", **metrics
                )
            scores = self._second(trial, network, encoder, data=data, maps=maps, device=device)
            metrics["stage2"] = scores.reward
        return trial.done(scores.reward, **metrics, **scores.figures())

    def without(self, task: Task) -> tuple[int, ...]:
        """Return the indices of classes that are left out of the averages."""
        return tuple(index for index, name in enumerate(task.classes) if name == self.background)

    @property
    def _crop_settings(self) -> CropSettings:
        return CropSettings(self.features, self.images, self.judge, self.seed)

    def _network(self, trial: Trial, encoder: FixedEncoder, classes: int) -> Network:
        arch = parse_architecture(dict(trial.architecture))
        auxiliary = self.stage1.loss.auxiliary_default or self.stage1.loss.auxiliary
        network = build(arch, classes, outputs="all" if auxiliary else (MAIN,))
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
            for start in range(0, len(maps.judge["labels"]), JUDGE_BATCH):
                rows = slice(start, start + JUDGE_BATCH)
                batch = normalise(maps.judge["images"][rows], encoder.preprocessing, device)
                count(meter, network(batch), maps.judge["labels"][rows], task=data.task, device=device)
        return meter.scores(without=self.without(data.task))

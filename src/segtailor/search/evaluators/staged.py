"""Judging in two stages (auxiliary cells, section 3.2): the decoder on pre-computed maps, then all of it end to end.

The first stage is cheap and tells bad from good; whether the second is worth it, the running mean decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from segtailor.core.errors import Diverged, Unsupported, UserError
from segtailor.core.plan import MAIN
from segtailor.core.space import parse_architecture
from segtailor.core.strategy import Trial, TrialResult
from segtailor.core.task import Task
from segtailor.data.augment import Augment
from segtailor.data.batches import Batches
from segtailor.nets.build import build
from segtailor.nets.inference import inference, normalise
from segtailor.nets.network import Network, initialise
from segtailor.nets.parts import Part
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
from segtailor.search.evaluators.train import HalvedPixels
from segtailor.tasks import LossSettings, Meter, Scores, kind_of
from segtailor.training.averaging import Average
from segtailor.training.device import arrange, place
from segtailor.training.distill import DistillSettings, distillation
from segtailor.training.fit import Fit
from segtailor.training.optimiser import make_optimiser
from segtailor.training.schedule import Schedule
from segtailor.training.settings import EncoderSettings, FitSettings

JUDGED_AT_ONCE = 16
ORDER = 2  # separates the order of the first stage from other random streams

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
        return Maps(fit, judge, logits)

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
        images, labels = data.fit.canvas()
        total = self.stage2.total(max(1, len(data.fit) // self.stage2.batch))
        settings = replace(self.stage2, steps=max(1, round(total * trial.budget)), seed=trial.seed)
        fit = Fit(
            network=network,
            batches=partial(
                Batches,
                images=images,
                labels=labels,
                sizes=data.fit.sizes,
                targets=data.fit.targets,
                augment=self.augment,
                preprocessing=encoder.preprocessing,
                device=device,
            ),
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
                _count(meter, network(batch), maps.judge["labels"][here], task=data.task, device=device)
        return meter.scores(without=self.without(data.task))


class Maps(NamedTuple):
    """Memory-mapped arrays: to fit on, to judge by, and the teacher's logits."""

    fit: Mapping[str, NDArray[Any]]
    judge: Mapping[str, NDArray[Any]]
    logits: NDArray[Any] | None = None


class FirstStage:
    """The decoder of one network, trained and scored on maps."""

    def __init__(
        self, settings: StagedEvaluator, network: Network, encoder: FixedEncoder, task: Task,
        maps: Maps, device: torch.device,
    ) -> None:  # fmt: skip
        self.settings = settings
        self.maps = maps
        self.device = device
        self.task = task
        self.taps = encoder.taps(network.plan)
        self.decoder = Part(network, inputs=self.taps, outputs=network.plan.outputs)
        place(self.decoder, device, channels_last=settings.stage1.channels_last)
        self.criterion = kind_of(task).criterion(settings.stage1.loss, task=task, device=device)

    def train(self, trial: Trial) -> None:
        """Train; incomplete batches are dropped, and the averaged weights stay in the network."""
        how = self.settings.stage1
        optimiser = make_optimiser(self.decoder, how)
        average = Average(self.decoder, decay=how.ema, warm_up=how.ema_warmup) if how.ema else None
        self.decoder.train()
        loss = torch.zeros(())
        for last_of_epoch, rows in self._order(trial):
            loss = self.loss(rows)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            if how.clip is not None:
                nn.utils.clip_grad_norm_(self.decoder.parameters(), how.clip)
            optimiser.step()
            if average is not None:
                average.update()
            if average is not None and last_of_epoch and self.settings.average_each_epoch:
                self.decoder.load_state_dict(average.state(), strict=False)
        if not math.isfinite(float(loss.detach())):
            raise Diverged(f"the first stage diverged: its loss is {float(loss.detach())}. Lower stage1.lr.")
        if average is not None:
            self.decoder.load_state_dict(average.state(), strict=False)  # norms' statistics as they are

    def loss(self, rows: NDArray[np.int64]) -> Tensor:
        """Return the task's loss of all outputs at the size of the first map, and the distance to the teacher."""
        outputs = self.decoder(self._values(self.maps.fit, rows))
        labels = torch.from_numpy(self.maps.fit["labels"][rows]).to(self.device)
        loss = self.criterion(outputs, labels, normaliser=self.criterion.normaliser(labels))
        follow = self.settings.stage1.distill
        if self.maps.logits is not None and follow is not None:
            target = torch.from_numpy(self.maps.logits[rows]).to(self.device)
            loss = loss + distillation(outputs[MAIN], target, follow, align_corners=False)
        return loss

    def score(self) -> Scores:
        """Score the main output on the other half."""
        meter = kind_of(self.task).meter(self.task, self.device)
        labels = self.maps.judge["labels"]
        with inference(self.decoder):
            for start in range(0, len(labels), JUDGED_AT_ONCE):
                rows = np.arange(start, min(start + JUDGED_AT_ONCE, len(labels)))
                logits = self.decoder(self._values(self.maps.judge, rows))[MAIN]
                _count(meter, logits, labels[rows], task=self.task, device=self.device)
        return meter.scores(without=self.settings.without(self.task))

    def _values(self, arrays: Mapping[str, NDArray[Any]], rows: NDArray[np.int64]) -> dict[str, Tensor]:
        return {
            name: arrange(
                torch.from_numpy(arrays[f"tap{level}"][rows]).to(self.device),
                channels_last=self.settings.stage1.channels_last,
            )
            for level, name in enumerate(self.taps)
        }

    def _order(self, trial: Trial) -> Iterator[tuple[bool, NDArray[np.int64]]]:
        """Yield the rows of each batch, and whether it is the last of its epoch."""
        count = len(self.maps.fit["labels"])
        batch = min(self.settings.stage1.batch, count)
        per_epoch = count // batch
        steps = max(1, round(self.settings.stage1.total(per_epoch) * trial.budget))
        for step in range(steps):
            epoch, place = divmod(step, per_epoch)
            order = np.random.default_rng([ORDER, trial.seed, epoch]).permutation(count)
            yield place == per_epoch - 1, np.sort(order[place * batch : (place + 1) * batch])


def _count(meter: Meter, logits: Tensor, labels: NDArray[Any], *, task: Task, device: torch.device) -> None:
    size = (int(labels.shape[1]), int(labels.shape[2]))
    found = kind_of(task).decode(logits, size, task=task, align_corners=False)
    meter.add(found, torch.from_numpy(np.array(labels)).to(device))

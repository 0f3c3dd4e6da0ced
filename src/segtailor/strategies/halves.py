"""The two halves of the training split that a search sees: as a dataset, as decoded pixels and as batches.

Weights are fitted on one half, choices are judged on the other. A search never sees the validation split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch

from segtailor.core.errors import Unsupported, unknown
from segtailor.core.plan import Shape
from segtailor.core.strategy import Halves, Problem
from segtailor.core.task import Task
from segtailor.data.augment import Augment
from segtailor.data.batches import Batches, batches_of
from segtailor.data.cache import Pixels, open_pixels
from segtailor.data.dataset import Dataset, Sample, check_pair
from segtailor.data.recordings import by_recording
from segtailor.data.splits import split_samples
from segtailor.strategies.gradient_settings import Gradient
from segtailor.strategies.roles import mixed_seed

FIT, JUDGE = "fit", "judge"  # names of the two halves
# Each kind of batches has its own random stream: the two halves, and the training of weights before the search.
FIT_STREAM, JUDGE_STREAM, FIRST_STREAM = 0, 1, 4


@dataclass(frozen=True, kw_only=True)
class HalvedTrain:
    """The training split of a dataset as two splits, `fit` and `judge`, divided by seed and recording.

    Frames of one recording (drive, scene, name prefix) stay on one side, otherwise samples are divided by name.
    """

    dataset: Dataset
    split: str = "train"
    share: float = 0.5  # of the samples that judge
    seed: int = 0

    @property
    def task(self) -> Task:
        """The task of the dataset."""
        return self.dataset.task

    @property
    def splits(self) -> tuple[str, ...]:
        """The two halves."""
        return (FIT, JUDGE)

    def samples(self, split: str) -> Sequence[Sample]:
        """Return the samples of one half."""
        if split not in self.splits:
            raise unknown("split", split, self.splits)
        return self._parts[split]

    def halves(self) -> Halves:
        """Return both halves as plain data."""
        return Halves(fit=tuple(self.samples(FIT)), judge=tuple(self.samples(JUDGE)))

    @cached_property
    def _parts(self) -> dict[str, list[Sample]]:
        samples = {sample.name: sample for sample in split_samples(self.dataset, self.split)}
        names = by_recording(list(samples), val=self.share, seed=self.seed)
        return {
            half: [samples[name] for name in names[part]] for half, part in ((FIT, "train"), (JUDGE, "val"))
        }


class HalvedPixels(NamedTuple):
    """The decoded halves of a training split; a worker keeps them between trials."""

    task: Task
    fit: Pixels
    judge: Pixels


@dataclass(frozen=True, kw_only=True)
class HalvesDataset:
    """The halves of a problem as a dataset, so that they are cached like any other split."""

    task: Task
    halves: Halves
    splits: tuple[str, ...] = (FIT, JUDGE)

    def samples(self, split: str) -> Sequence[Sample]:
        """Return the samples of one half."""
        if split not in self.splits:
            raise unknown("split", split, self.splits)
        return cast(Sequence[Sample], self.halves.fit if split == FIT else self.halves.judge)


def halved_pixels(problem: Problem) -> HalvedPixels:
    """Decode both halves of a problem; with a cache folder they are decoded once and memory-mapped."""
    if problem.data is None:
        raise Unsupported("the problem has no data; give a dataset.")
    dataset = HalvesDataset(task=problem.task, halves=problem.data)
    fit, judge = (_pixels(dataset, half, problem.cache) for half in (FIT, JUDGE))
    return HalvedPixels(problem.task, fit, judge)


def half_batches(
    pixels: Pixels, settings: Gradient, *, image: Shape, seed: int, stream: int, device: torch.device
) -> Batches:
    """Return the batches of a half in a gradient search."""
    augment = settings.augment or Augment(crop=(image.height, image.width), scale=(1.0, 1.0))
    make = batches_of(pixels, augment, settings.preprocessing, device=device)
    return make(batch=settings.fit.batch, seed=mixed_seed(seed, 3, stream))


def _pixels(dataset: HalvesDataset, half: str, cache: Path | None) -> Pixels:
    if cache is not None:
        return open_pixels(dataset, half, cache)
    samples = dataset.samples(half)
    pairs = [sample.read() for sample in samples]
    channels = getattr(samples[0], "channels", 3)
    for sample, pair in zip(samples, pairs, strict=True):
        check_pair(pair, dataset.task, sample.name, channels=channels)
    return Pixels(
        task=dataset.task,
        names=tuple(sample.name for sample in samples),
        sizes=np.array([pair.labels.shape for pair in pairs], dtype=np.int64),
        fingerprint=dataset.halves.fingerprint,
        images=np.concatenate([pair.image.reshape(-1) for pair in pairs]),
        labels=np.concatenate([pair.labels.reshape(-1) for pair in pairs]),
        samples=tuple(samples),
        channels=channels,
    )

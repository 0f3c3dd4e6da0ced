"""The decoded halves of a problem's training split, from the cache where there is one, and their batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch

from segtailor.core.errors import Unsupported, unknown
from segtailor.core.plan import Shape
from segtailor.core.strategy import Halves, Problem
from segtailor.core.task import Task
from segtailor.data.augment import Augment
from segtailor.data.batches import Batches, batches_of
from segtailor.data.cache import Pixels, open_pixels
from segtailor.data.dataset import Sample, check_pair
from segtailor.strategies.evaluators.train import HalvedPixels
from segtailor.strategies.gradient_settings import Gradient
from segtailor.strategies.halves import FIT, JUDGE
from segtailor.strategies.roles import mixed_seed

FIT_STREAM, JUDGE_STREAM, FIRST_STREAM = (
    0,
    1,
    4,
)  # separate random streams: halves, and weights before the search


@dataclass(frozen=True, kw_only=True)
class HalvesDataset:
    """Two halves as a dataset, so that they are cached like any other split."""

    task: Task
    halves: Halves
    splits: tuple[str, ...] = (FIT, JUDGE)

    def samples(self, split: str) -> Sequence[Sample]:
        """Return the samples of one half."""
        if split not in self.splits:
            raise unknown("split", split, self.splits)
        return cast(Sequence[Sample], self.halves.fit if split == FIT else self.halves.judge)


def halved_pixels(problem: Problem) -> HalvedPixels:
    """Decode both halves; with a cache folder they are memory-mapped and decoded once."""
    if problem.data is None:
        raise Unsupported("the problem has no data; give a dataset.")
    dataset = HalvesDataset(task=problem.task, halves=problem.data)
    fit, judge = (_pixels(dataset, half, problem.cache) for half in (FIT, JUDGE))
    return HalvedPixels(problem.task, fit, judge)


def half_batches(
    pixels: Pixels, settings: Gradient, *, image: Shape, seed: int, stream: int, device: torch.device
) -> Batches:
    """Return the batches of a half as a gradient search sees them."""
    augment = settings.augment or Augment(crop=(image.height, image.width), scale=(1.0, 1.0))
    make = batches_of(pixels, augment, settings.preprocessing, device=device)
    return make(batch=settings.fit.batch, seed=mixed_seed(seed, 3, stream))


def _pixels(dataset: HalvesDataset, half: str, cache: Path | None) -> Pixels:
    if cache is not None:
        return open_pixels(dataset, half, cache)
    samples = dataset.samples(half)
    pairs = [sample.read() for sample in samples]
    for sample, pair in zip(samples, pairs, strict=True):
        check_pair(pair, dataset.task, sample.name)
    return Pixels(
        task=dataset.task,
        names=tuple(sample.name for sample in samples),
        sizes=np.array([pair.labels.shape for pair in pairs], dtype=np.int64),
        fingerprint=dataset.halves.fingerprint,
        images=np.concatenate([pair.image.reshape(-1) for pair in pairs]),
        labels=np.concatenate([pair.labels.reshape(-1) for pair in pairs]),
    )

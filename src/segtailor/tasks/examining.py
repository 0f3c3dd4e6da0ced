"""Scores and draws predictions of single samples for reports, for any kind of task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from segtailor.core.task import KIND_FACTS, Task
from segtailor.tasks.kind import Look, Meter, kind_of


class ImageWithTarget(Protocol):
    """A picture and its target (`data.dataset.Pair`)."""

    @property
    def image(self) -> NDArray[np.uint8]:
        """Pixels (height, width, 3)."""

    @property
    def labels(self) -> NDArray[Any]:
        """The target."""


class PredictionExaminer:
    """Predicts samples with `predict` (picture to prediction at its size) and accumulates their scores."""

    def __init__(self, predict: Callable[[NDArray[np.uint8]], NDArray[Any]], task: Task) -> None:
        self._predict, self._task, self._kind = predict, task, kind_of(task)
        self._all = self._meter()
        self.figure = KIND_FACTS[task.kind].headline.label

    def judge(self, sample: ImageWithTarget) -> float:
        """Predict a sample, count it, and return its quality."""
        found = torch.from_numpy(np.array(self._predict(sample.image)))[None]
        target = torch.from_numpy(np.array(sample.labels))[None]
        alone = self._meter()
        for meter in (alone, self._all):
            meter.add(found, target)
            meter.images += 1
        return alone.scores().quality

    def draw(self, sample: ImageWithTarget) -> tuple[Image.Image, Image.Image, Image.Image, Image.Image]:
        """Return image, truth, prediction and error."""
        image, target = np.asarray(sample.image), np.asarray(sample.labels)
        found, colours = self._predict(image), Look(form="colour")
        truth, guess = (self._kind.paint(image, each, self._task, colours) for each in (target, found))
        return Image.fromarray(image), truth, guess, self._kind.mark(image, target, found, self._task)

    def facts(self) -> list[tuple[str, str]]:
        """Return name and value of the figures over all judged samples."""
        found = self._all.scores().figures()
        known = KIND_FACTS[self._task.kind].figures
        return [(figure.label, figure.told(found[figure.name])) for figure in known if figure.name in found]

    def _meter(self) -> Meter:
        return self._kind.meter(self._task, torch.device("cpu"))

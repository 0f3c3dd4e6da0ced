"""Judging an architecture without training it: its slice of a supernet's weights, scored on the held-out half."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from segtailor.core.plan import Shape
from segtailor.core.space import Architecture, SearchSpace
from segtailor.core.task import Task
from segtailor.data.batches import Batches
from segtailor.data.dataset import Pair
from segtailor.nets.network import Network
from segtailor.nets.relax import Live, Weights, live
from segtailor.nets.supernet import Supernet
from segtailor.search.gradient_settings import Gradient
from segtailor.tasks import Scores
from segtailor.training.device import place
from segtailor.training.evaluate import LabelledImages, evaluate

MULTIPLE = 32  # of image sides that any supernet accepts


@dataclass(frozen=True, kw_only=True)
class First:
    """The first `count` of some pictures."""

    pictures: LabelledImages
    count: int

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Height and width of each."""
        return self.pictures.sizes[: self.count]

    def __len__(self) -> int:
        return len(self.sizes)

    def pair(self, index: int) -> Pair:
        """Return one."""
        return self.pictures.pair(range(len(self))[index])


@dataclass(frozen=True, kw_only=True)
class SharedJudge:
    """Judges architectures by the supernet's weights on the half that trained none; `batches` are of the other."""

    settings: Gradient
    space: SearchSpace
    task: Task
    image: Shape
    supernet: Supernet
    batches: Batches
    pictures: LabelledImages
    device: torch.device

    def __call__(self, arch: Architecture) -> float:
        """Return the quality on the held-out half."""
        return self.scores(arch).quality

    def scores(self, arch: Architecture, *, share: float = 1.0) -> Scores:
        """Score an architecture on a share of the pictures that the settings name; what was removed raises."""
        network = Network(self.space.plan(arch, self.image, self.task.outputs), architecture=arch)
        self.supernet.transfer(arch, network)
        place(network, self.device, channels_last=self.settings.fit.channels_last_on(self.device))
        if self.settings.choice.recalibrate:
            self._recalibrate(network)
        return self._scores(network, share=share)

    def output(self, name: str, weights: Weights) -> float:
        """Return the quality of an output of the supernet itself."""
        scale = self.settings.choice.scale
        return self._scores(Driven(self.supernet, weights, live(weights), output=name, scale=scale)).quality

    def _scores(self, network: nn.Module, *, share: float = 1.0) -> Scores:
        most = min(self.settings.choice.images or len(self.pictures), len(self.pictures))
        return evaluate(
            network,
            First(pictures=self.pictures, count=max(1, round(share * most))),
            task=self.task,
            preprocessing=self.settings.preprocessing,
            device=self.device,
            batch=self.settings.fit.validate_batch,
        )

    @torch.no_grad()
    def _recalibrate(self, network: nn.Module) -> None:
        """Measure the statistics of norms: the shared ones are of mixed maps that this network never sees."""
        norms = [part for part in network.modules() if isinstance(part, nn.BatchNorm2d)]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # a plain average over all batches
        network.train()
        for number in range(self.settings.choice.recalibrate):
            network(self.batches.at(number).images)


class Driven(nn.Module):
    """A supernet at given weights as a network of one output; images are resized by `scale`, to sides it accepts."""

    def __init__(
        self, supernet: Supernet, weights: Weights, live: Live, *, output: str, scale: float
    ) -> None:
        super().__init__()
        self.supernet, self.weights, self.live = supernet, weights, live
        self.output, self.scale = output, scale

    @property
    def plan(self) -> Supernet:
        """Says how the output is enlarged."""
        return self.supernet

    def forward(self, image: Tensor) -> Tensor:
        """Return the logits of the output."""
        size = [max(1, round(side * self.scale / MULTIPLE)) * MULTIPLE for side in image.shape[2:]]
        if size != list(image.shape[2:]):
            image = functional.interpolate(image, size=size, mode="bilinear", antialias=self.scale < 1)
        return self.supernet.forward(image, self.weights, self.live)[self.output]

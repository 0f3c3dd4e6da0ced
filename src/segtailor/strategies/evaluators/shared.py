"""The evaluator `shared`: an architecture is scored with its part of a supernet's weights, without training.

`SharedJudge` scores with a supernet in memory, as a gradient search does in the end; `SharedEvaluator` judges trials
with one that was saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from segtailor.core.errors import RunProblem, Unsupported
from segtailor.core.plan import Shape
from segtailor.core.space import Architecture, SearchSpace, parse_architecture
from segtailor.core.strategy import SearchProblem, Trial, TrialResult
from segtailor.core.task import Task
from segtailor.data.batches import Batches
from segtailor.data.dataset import Pair
from segtailor.nets.network import Network
from segtailor.nets.relax import Live, Weights, live
from segtailor.nets.supernet import Supernet
from segtailor.strategies.gradient_settings import Choice, Gradient
from segtailor.strategies.halves import FIT_STREAM, HalvedPixels, half_batches
from segtailor.strategies.saved_supernet import load_supernet, read_facts
from segtailor.tasks import Scores
from segtailor.training.device import place
from segtailor.training.evaluate import LabelledImages, evaluate

SIDE_MULTIPLE = 32  # pixels: any supernet accepts image sides that are multiples of it


@dataclass(frozen=True, kw_only=True)
class SharedEvaluator:
    """Score on the half that trained no weights.

    Statistics of norms are measured before, on `recalibrate` batches of the other half.
    `supernet` is the folder of a saved supernet. With `images` only the first ones of the half are used; a trial's
    budget is the share of them.
    """

    supernet: str
    recalibrate: int = 8
    images: int | None = None

    def __post_init__(self) -> None:
        if self.recalibrate < 0 or (self.images is not None and self.images < 1):
            raise SearchProblem("shared: recalibrate must be 0 or more, images 1 or more.")

    def judge(self, trial: Trial, *, weights: SharedJudge) -> TrialResult:
        """Score the architecture of a trial; one that uses a removed option is a failed trial."""
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


@dataclass(frozen=True, kw_only=True)
class SomePictures:
    """Some of the pictures: those with these indices."""

    pictures: LabelledImages
    indices: Sequence[int]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Height and width of each picture."""
        return self.pictures.sizes[list(self.indices)]

    def __len__(self) -> int:
        return len(self.indices)

    def pair(self, index: int) -> Pair:
        """Return one picture with its labels."""
        return self.pictures.pair(self.indices[index])


def evenly_spaced(pictures: LabelledImages, count: int) -> SomePictures:
    """Return at most `count` of the pictures, evenly spaced: neighbours of one recording look alike."""
    count = min(count, len(pictures))
    indices = [round((place + 0.5) * len(pictures) / count - 0.5) for place in range(count)]
    return SomePictures(pictures=pictures, indices=indices)


@dataclass(frozen=True, kw_only=True)
class SharedJudge:
    """Judges architectures with the supernet's weights.

    `pictures` are of the half that trained no weights, `batches` of the other.
    """

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
        """Score an architecture on a share of the pictures; raise `Unsupported` if it uses a removed option."""
        return self._scores(self.network(arch), share=share)

    def network(self, arch: Architecture) -> Network:
        """Return the network of an architecture with its part of the weights, and statistics of norms of its own."""
        network = Network(self.space.plan(arch, self.image, self.task.outputs), architecture=arch)
        self.supernet.transfer(arch, network)
        place(network, self.device, channels_last=self.settings.fit.channels_last_on(self.device))
        if self.settings.choice.recalibrate:
            self._recalibrate(network)
        return network

    def output(self, name: str, weights: Weights) -> float:
        """Return the quality of an output of the supernet itself."""
        scale = self.settings.choice.scale
        return self._scores(
            DrivenSupernet(self.supernet, weights, live(weights), output=name, scale=scale)
        ).quality

    def _scores(self, network: nn.Module, *, share: float = 1.0) -> Scores:
        most = min(self.settings.choice.images or len(self.pictures), len(self.pictures))
        return evaluate(
            network,
            SomePictures(pictures=self.pictures, indices=range(max(1, round(share * most)))),
            task=self.task,
            preprocessing=self.settings.preprocessing,
            device=self.device,
            batch=self.settings.fit.validate_batch,
        )

    @torch.no_grad()
    def _recalibrate(self, network: nn.Module) -> None:
        """Measure the statistics of norms: the shared ones are of mixed maps, which this network does not compute."""
        norms = [part for part in network.modules() if isinstance(part, nn.BatchNorm2d)]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # a plain average over all batches
        network.train()
        for number in range(self.settings.choice.recalibrate):
            network(self.batches.at(number).images)


class DrivenSupernet(nn.Module):
    """A supernet at given weights as a network with one output; images are resized by `scale`, to sides it accepts."""

    def __init__(
        self, supernet: Supernet, weights: Weights, live: Live, *, output: str, scale: float
    ) -> None:
        super().__init__()
        self.supernet, self.weights, self.live = supernet, weights, live
        self.output, self.scale = output, scale

    @property
    def plan(self) -> Supernet:
        """The supernet, which says how the output is enlarged."""
        return self.supernet

    def forward(self, image: Tensor) -> Tensor:
        """Return the logits of the output."""
        size = [max(1, round(side * self.scale / SIDE_MULTIPLE)) * SIDE_MULTIPLE for side in image.shape[2:]]
        if size != list(image.shape[2:]):
            image = functional.interpolate(image, size=size, mode="bilinear", antialias=self.scale < 1)
        return self.supernet.forward(image, self.weights, self.live)[self.output]

"""A short training on some samples, for questions about data: a small network, ImageNet weights, small pictures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from segtailor.core.plan import MAIN
from segtailor.core.ranges import check_whole
from segtailor.core.task import Preprocessing
from segtailor.data.batches import batches_of
from segtailor.data.cache import Pixels
from segtailor.nets.bundle import Model
from segtailor.nets.network import build, initialise
from segtailor.recipes.train import FINE_TUNING, largest_crop, usual_augment
from segtailor.spaces.elastic import ElasticArchitecture
from segtailor.spaces.networks import resolve
from segtailor.spaces.starts import AUTO, choose_start, start_network
from segtailor.training.fit import Fit

# EfficientNet-Lite0 without its last stage, at the full size of the small pictures: all of it begins from ImageNet
# weights, so a short training gets far (docs/results.md#wrong-labels).
JUDGE = ElasticArchitecture(
    scale="1", depths=(2, 2, 3, 3, 0), expansions=(6, 6, 6, 6, 6), decoder=64, detail=4
)


@dataclass(frozen=True, kw_only=True)
class ShortTraining:
    """A network by name or file (`JUDGE` when left out), its start, the number of steps, and the largest image."""

    network: str | None = None
    start: str = AUTO
    steps: int = 150
    batch: int = 8
    max_pixels: int = 200 * 256
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole("steps", self.steps, least=1)
        check_whole("batch", self.batch, least=1)


def train_briefly(
    pixels: Pixels,
    settings: ShortTraining,
    *,
    device: torch.device,
    preprocessing: Preprocessing | None = None,
    trusted: bool = False,
) -> Model:
    """Train on decoded samples, normalised by `preprocessing`, and return the model."""
    arch = JUDGE if settings.network is None else resolve(_name_or_file(settings.network))
    task, preprocessing = pixels.task, preprocessing or Preprocessing()
    network = build(arch, task.outputs, outputs=(MAIN,), channels=preprocessing.channels)
    initialise(network, settings.seed)
    name, _ = choose_start(settings.start, arch, task)
    _, taken = start_network(network, name, task, preprocessing=preprocessing, trusted=trusted)
    warmup = min(FINE_TUNING.schedule.warmup, settings.steps // 4)
    fit = Fit(
        network=network,
        batches=batches_of(
            pixels, usual_augment(task.kind, largest_crop(pixels)), preprocessing, device=device
        ),
        settings=replace(
            FINE_TUNING,
            steps=settings.steps,
            batch=settings.batch,
            seed=settings.seed,
            schedule=replace(FINE_TUNING.schedule, warmup=warmup),
        ),
        task=task,
        device=device,
        preprocessing=preprocessing,
        carried=taken.parameters if taken is not None else frozenset(),
    )
    for _ in fit.steps():
        pass
    network.load_state_dict(fit.weights())
    return Model(network=network.eval(), task=task, preprocessing=preprocessing)


def _name_or_file(text: str) -> str | Path:
    return Path(text) if "/" in text else text

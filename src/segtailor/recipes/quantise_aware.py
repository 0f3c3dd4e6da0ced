"""Fine-tune a network with the rounding of int8 inside, so that its int8 file loses less."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from segtailor.core.job import Step
from segtailor.core.ranges import check_number, check_whole
from segtailor.data.augment import Augment
from segtailor.data.batches import batches_of
from segtailor.data.cache import Pixels
from segtailor.deploy.fake_quantise import BYTES_BETWEEN_LAYERS, FakeQuantised, Rounding
from segtailor.deploy.fold import inference_form
from segtailor.nets.bundle import Model
from segtailor.nets.network import Network
from segtailor.recipes.train import largest_crop
from segtailor.runs import Context
from segtailor.training.device import pick_device
from segtailor.training.distill import DistillSettings
from segtailor.training.fit import Fit
from segtailor.training.settings import FitSettings, Schedule

MAX_CROP_SIDE = 384  # pixels: rounding is a local matter, and small crops are quicker
MEASURED_BATCHES = 8  # that give the first ranges
WARM_UP_STEPS = 20


@dataclass(frozen=True, kw_only=True)
class TuningSettings:
    """How long and how fast to fine-tune; `seconds` may end it earlier. `always`: even where it is not needed.

    `context` says where decoded pixels are kept and which device to use.
    """

    steps: int = 300
    batch: int = 8
    lr: float = 3e-5
    seconds: float | None = None
    always: bool = False
    context: Context = field(default_factory=Context)

    def __post_init__(self) -> None:
        check_whole("steps", self.steps, least=1)
        check_whole("batch", self.batch, least=1)
        check_number("lr", self.lr, above=0.0)


class Tuned(NamedTuple):
    """The tuned network in its inference form, and what it took."""

    network: Network
    steps: int
    seconds: float


def tune(
    model: Model,
    pixels: Pixels,
    settings: TuningSettings,
    *,
    rounding: Rounding = BYTES_BETWEEN_LAYERS,
    seed: int = 0,
    progress: Callable[[Step], None] | None = None,
) -> Tuned:
    """Return the network of a model, fine-tuned on decoded samples; the model itself stays as it is.

    Norms are folded before, as in the file. The labels and the logits of the unrounded network are both learnt.
    """
    began, device = time.monotonic(), pick_device(settings.context.device)
    network = inference_form(model.network).float().to(device)
    height, width = largest_crop(pixels)
    crop = min(height, MAX_CROP_SIDE), min(width, MAX_CROP_SIDE)
    rounded = FakeQuantised(network, batch=settings.batch, crop=crop, rounding=rounding)
    fit = Fit(
        network=rounded,
        batches=batches_of(pixels, Augment(crop=crop), model.preprocessing, device=device),
        settings=FitSettings(
            steps=settings.steps,
            batch=settings.batch,
            optimiser="adamw",
            lr=settings.lr,
            weight_decay=0.0,
            ema=0.98,
            distill=DistillSettings(),
            schedule=Schedule(kind="cosine", warmup=min(WARM_UP_STEPS, settings.steps // 4)),
            record=False,
            seconds=settings.seconds,
            seed=seed,
        ),
        task=model.task,
        device=device,
        preprocessing=model.preprocessing,
        teacher=inference_form(model.network).float(),
    )
    rounded.measure(fit.source.at(step).images for step in range(MEASURED_BATCHES))
    for step in fit.steps():
        if progress is not None:
            progress(step)
    network = network.cpu()
    network.load_state_dict({name: value.cpu() for name, value in rounded.weights(fit.weights()).items()})
    return Tuned(network.eval().requires_grad_(False), fit.done, time.monotonic() - began)

"""Everything that decides how a network is trained, as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch

from segtailor.core.errors import UserError
from segtailor.core.ranges import check_number, check_seed, check_whole
from segtailor.tasks.loss_settings import LossSettings
from segtailor.training.device import Precision
from segtailor.training.distill import DistillSettings
from segtailor.training.schedule import Schedule

OptimiserKind: TypeAlias = Literal["sgd", "adam", "adamw"]


@dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """An optimiser of its own for nodes whose names start with `start`; its rate follows the same schedule."""

    start: str = "encoder"
    optimiser: OptimiserKind = "sgd"
    lr: float = 1e-3
    momentum: float = 0.9
    weight_decay: float = 1e-5

    def __post_init__(self) -> None:
        if not self.lr > 0 or self.weight_decay < 0:
            raise UserError(
                f"encoder: lr {self.lr} must be above 0 and weight_decay {self.weight_decay} at least 0."
            )


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """How to train. `batch` is the global one: the same run on one process or many.

    Give `epochs` or `steps` (which wins). `decay_norms` also decays norms and biases. `accumulate` splits a
    process's share of the batch into that many parts. `validate_every` counts epochs, 0 validates only at the end.
    `patience` is the number of non-finite steps in a row that stops the run. `encoder` gives a pre-trained part an
    optimiser of its own, which is then also clipped apart; `freeze_norms` keeps the statistics of norms as they are.
    `ema` averages weights with that decay, `ema_norms` also the statistics of norms (`training.averaging`).
    `record` launches a whole forward and backward pass at once where the device can (CUDA graphs). `stochastic_depth`
    is the share of images for which the last residual block adds nothing (earlier ones less, linearly), `dropout` that
    of the channels which residual blocks do not add (`training.dropping`). `seconds` is how long the steps may take:
    where the machine is slower than planned there are fewer of them, but no fewer than `least_steps`.
    `deterministic` also keeps the number of threads, which otherwise follows from how busy the machine is.
    """

    epochs: int = 100
    steps: int | None = None
    batch: int = 16
    optimiser: OptimiserKind = "sgd"
    lr: float = 0.01
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 5e-4
    decay_norms: bool = True
    encoder: EncoderSettings | None = None
    freeze_norms: bool = False
    stochastic_depth: float = 0.0
    dropout: float = 0.0
    schedule: Schedule = field(default_factory=Schedule)
    loss: LossSettings = field(default_factory=LossSettings)
    distill: DistillSettings | None = None
    ema: float | None = None
    ema_warmup: bool = True
    ema_norms: bool = False
    precision: Precision = "fp32"
    channels_last: bool = True
    compile: bool = False
    record: bool = True
    clip: float | None = None
    accumulate: int = 1
    sync_bn: bool = False
    deterministic: bool = False
    validate_every: int = 0
    validate_batch: int = 8
    patience: int = 25
    seed: int = 0
    seconds: float | None = None
    least_steps: int = 1

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "accumulate", "validate_batch", "patience"):
            check_whole(name, getattr(self, name), least=1)
        if self.steps is not None:
            check_whole("steps", self.steps, least=1)
        check_number("lr", self.lr, above=0.0)
        check_seed(self.seed)
        if self.ema is not None and not 0 <= self.ema < 1:
            raise UserError(f"ema: {self.ema} is no decay; give e.g. 0.999, or leave it out.")
        for name in ("clip", "seconds"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise UserError(f"{name}: {getattr(self, name)} must be above 0, or left out.")
        self._check_shares()
        for name in ("validate_every", "weight_decay"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise UserError(f"{name}: {getattr(self, name)} is no number from 0 on; give 0 or more.")

    def _check_shares(self) -> None:
        for name in ("stochastic_depth", "dropout"):
            share = getattr(self, name)
            if not 0 <= share < 1:
                raise UserError(f"{name}: {share} is no share; give 0 or more, and less than 1.")

    def channels_last_on(self, device: torch.device) -> bool:
        """Whether maps lie with channels last there.

        Not in half precision on a CPU: the weights' gradients of grouped convolutions with dilation are wrong then, up
        to not finite (oneDNN in torch 2.13).
        """
        return self.channels_last and (device.type != "cpu" or self.precision == "fp32")

    def total(self, steps_per_epoch: int) -> int:
        """Return the number of steps of the whole run."""
        return self.steps if self.steps is not None else self.epochs * steps_per_epoch

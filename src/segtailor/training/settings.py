"""All settings of a training as one frozen value, with the learning-rate schedules."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch

from segtailor.core.errors import UserError
from segtailor.core.ranges import check_number, check_seed, check_whole
from segtailor.tasks.loss_settings import LossSettings
from segtailor.training.device import Precision
from segtailor.training.distill import DistillSettings

MAX_CARRIED_LR = 100.0

OptimiserKind: TypeAlias = Literal["sgd", "adam", "adamw"]
ScheduleKind: TypeAlias = Literal["poly", "exponential", "cosine", "step", "constant"]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A learning-rate schedule: its kind and parameters, after a linear warm-up of `warmup` steps."""

    kind: ScheduleKind = "poly"
    power: float = 0.9  # poly
    reach: float = 1.0  # poly: share of the curve that the run covers; below 1 it ends before the rate is 0
    gamma: float = 0.98  # exponential: per epoch; step: per milestone
    epoch_steps: int | None = None  # exponential: steps that count as an epoch, by default those of the data
    milestones: tuple[float, ...] = (0.6, 0.85)  # step: shares of the run
    final: float = 0.0  # cosine: the last factor
    warmup: int = 0
    warmup_start: float = 0.0

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise UserError(
                f"schedule.warmup: {self.warmup} is negative; give a number of steps, 0 for none."
            )
        if list(self.milestones) != sorted(self.milestones) or not all(0 < m < 1 for m in self.milestones):
            raise UserError(
                f"schedule.milestones: {self.milestones} must ascend between 0 and 1, e.g. (0.6, 0.85)."
            )
        if not 0 < self.reach <= 1:
            raise UserError(f"schedule.reach: {self.reach} is no share of the curve; give 0 to 1, e.g. 0.75.")
        if not self.gamma > 0:
            raise UserError(f"schedule.gamma: {self.gamma} must be above 0.")
        if self.epoch_steps is not None:
            check_whole("schedule.epoch_steps", self.epoch_steps, least=1)

    def factor(self, done: int, *, total: int, steps_per_epoch: int) -> float:
        """Return the factor on the base rate for the step after `done` of `total` steps."""
        if done < self.warmup:
            return warm_up(done, steps=self.warmup, start=self.warmup_start)
        after = done - self.warmup
        progress = min(1.0, after / max(1, total - self.warmup))
        factors = {
            "poly": lambda: poly(self.reach * progress, power=self.power),
            "exponential": lambda: exponential(
                after // (self.epoch_steps or steps_per_epoch), gamma=self.gamma
            ),
            "cosine": lambda: cosine(progress, final=self.final),
            "step": lambda: step(progress, milestones=self.milestones, gamma=self.gamma),
            "constant": lambda: 1.0,
        }
        return factors[self.kind]()


@dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """A separate optimiser for nodes whose names start with `start`; its rate follows the same schedule."""

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
    """How to train. `batch` is the number of images per step over all processes.

    `steps` overrides `epochs`. `decay_norms` also applies weight decay to norms and biases. `accumulate` splits a
    process's share of the batch into that many parts. `validate_every` counts epochs; with 0 only the end is validated.
    `patience` is the number of non-finite steps in a row that stops the run. `encoder` gives a pre-trained part a
    separate optimiser, whose gradients are also clipped separately; `carried_lr` is a factor on the rate of weights
    that a start carried over, 0 if they are to stay; `freeze_norms` does not update the statistics of
    norms. `ema` averages weights with that decay, `ema_norms` also the statistics of norms (`Average`). `record`
    launches forward and backward pass as one unit where the device can (CUDA graphs). `stochastic_depth` is the share
    of images for which the last residual block is left out (earlier blocks linearly less), `dropout` the share of
    channels that residual blocks leave out (`drop_in_training`). `seconds` is how long the steps may take: on a slow
    machine there are fewer of them, but at least `least_steps`. `deterministic` also fixes the number of threads, which
    otherwise depends on how busy the machine is.
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
    carried_lr: float = 1.0
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
        if not 0 <= self.carried_lr <= MAX_CARRIED_LR:
            raise UserError(
                f"carried_lr: {self.carried_lr:g}; give 0 (carried weights stay) to {MAX_CARRIED_LR:g}."
            )
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
        """Whether feature maps have channels last on that device.

        Not in half precision on a CPU: there the weight gradients of grouped convolutions with dilation are wrong, or
        even not finite (oneDNN in torch 2.13).
        """
        return self.channels_last and (device.type != "cpu" or self.precision == "fp32")

    def total(self, steps_per_epoch: int) -> int:
        """Return the number of steps of the whole run."""
        return self.steps if self.steps is not None else self.epochs * steps_per_epoch


def poly(progress: float, *, power: float = 0.9) -> float:
    """Return `(1 - progress) ** power`."""
    return math.pow(1 - progress, power)


def exponential(epochs: int, *, gamma: float) -> float:
    """Return `gamma ** epochs`, of the epochs that are over: the rate falls after each."""
    return math.pow(gamma, epochs)


def cosine(progress: float, *, final: float = 0.0) -> float:
    """Return half a cosine from 1 down to `final`."""
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress))


def step(progress: float, *, milestones: Sequence[float], gamma: float) -> float:
    """Return `gamma` to the power of the number of milestones reached; milestones are ascending shares of the run."""
    return math.pow(gamma, bisect_right(milestones, progress))


def warm_up(done: int, *, steps: int, start: float = 0.0) -> float:
    """Return a factor that grows linearly from `start` to 1 over `steps` steps, and stays 1."""
    return 1.0 if done >= steps else start + (1 - start) * done / steps

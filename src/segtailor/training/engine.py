"""One training step: forward and backward pass in parts, loss scaling, clipping, update, averaging.

A step never waits for the device, so that the host can prepare the next one; only `report` waits.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from segtailor.core.errors import UserError
from segtailor.core.plan import MAIN
from segtailor.data.batches import Batch
from segtailor.tasks import Criterion
from segtailor.training import device as devices
from segtailor.training.device import CapturedStep
from segtailor.training.distill import distillation
from segtailor.training.distributed import parallel, sum_over_processes, world
from segtailor.training.optimiser import (
    Average,
    NonFiniteGuard,
    make_encoder_optimiser,
    make_optimiser,
    set_rate,
    split_parameters,
    update,
)
from segtailor.training.settings import FitSettings

SINGLE_VALUE_ERROR = "more than 1 value per channel"  # in the message of torch's batch norm


class StepReport(NamedTuple):
    """Mean loss of the good steps since the last report, skipped steps in all, and the longest row of them."""

    loss: float
    skipped: int
    row: int


class AllOutputs(nn.Module):
    """Returns every output of a network from `forward`, which wrappers such as DDP intercept."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Return outputs by name; a module without auxiliary outputs has only the main one."""
        forward_all = getattr(self.network, "forward_all", None)
        outputs: dict[str, Tensor] = forward_all(images) if forward_all else {MAIN: self.network(images)}
        return outputs


class Engine:
    """Takes training steps: holds everything that changes while training, apart from the counters of the job."""

    def __init__(
        self, network: nn.Module, criterion: Criterion, settings: FitSettings, *,
        device: torch.device, teacher: nn.Module | None = None, carried: Collection[str] = frozenset(),
    ) -> None:  # fmt: skip
        self.network = network
        self.criterion = criterion
        self.settings = settings
        self.device = device
        self.teacher = teacher
        self.part = max(1, settings.batch // world().size // settings.accumulate)  # images at a time
        self.optimiser = make_optimiser(network, settings, carried)
        self.second = make_encoder_optimiser(network, settings)
        self.average: Average | None = None
        if settings.ema:
            self.average = Average(
                network, decay=settings.ema, warm_up=settings.ema_warmup, norms=settings.ema_norms
            )
        self.guard = NonFiniteGuard(network, device, scaled=settings.precision == "fp16")
        wrapped = parallel(AllOutputs(network), device)
        self.outputs: nn.Module = torch.compile(wrapped) if settings.compile else wrapped  # type: ignore[assignment]
        # At full resolution a loss moves more memory than a small network: compiled it is several times faster.
        self._criterion = torch.compile(criterion.__call__) if settings.compile else criterion
        self._parts = [part for part in split_parameters(network, settings) if part]  # clipped separately
        frozen = network.modules() if settings.freeze_norms else ()
        self._frozen = [module for module in frozen if isinstance(module, BatchNorm)]
        self._loss, self._good = torch.zeros((), device=device), torch.zeros((), device=device)
        self._step_loss = torch.zeros((), device=device)
        self._forward_backward = self._recordable()

    def step(self, batch: Batch, *, rate: float) -> str | None:
        """Take one step; return a message when the batch had to be divided because memory ran out."""
        for optimiser in self._optimisers:
            set_rate(optimiser, rate)
        for module in self._frozen:  # in every step: validation switches the network back to training
            module.eval()
        images = devices.arrange(batch.images, channels_last=self.settings.channels_last_on(self.device))
        normaliser = sum_over_processes(self.criterion.normaliser(batch.labels))
        self.guard.open()
        loss, message = self._within_memory(Batch(images, batch.labels), normaliser)
        norm = torch.zeros((), device=self.device)
        for part in self._parts:
            gradients = [parameter.grad for parameter in part if parameter.grad is not None]
            self.guard.unscale(gradients)
            part_norm = nn.utils.get_total_norm(gradients)
            if self.settings.clip is not None:
                nn.utils.clip_grads_with_norm_(part, self.settings.clip, part_norm)
            norm = norm + part_norm
        not_finite = (~torch.isfinite(loss + norm)).float()
        mean_loss, count = sum_over_processes(torch.stack([loss / world().size, not_finite])).unbind()
        bad = count > 0  # all processes skip the step together, otherwise their weights would differ
        skip = self.guard.close(bad)
        for optimiser in self._optimisers:
            update(optimiser, skip=skip)
        self._clear_gradients()
        if self.average:
            self.average.update()
        self._loss += torch.where(bad, 0.0, mean_loss)
        self._good += ~bad
        return message

    def report(self) -> StepReport:
        """Return what happened since the last report; waits for the device."""
        loss, good = torch.stack([self._loss, self._good]).tolist()
        skipped, row = self.guard.tally()
        self._loss.zero_()
        self._good.zero_()
        return StepReport(loss / good if good else float("nan"), skipped, row)

    @property
    def _optimisers(self) -> list[Optimizer]:
        return [optimiser for optimiser in (self.optimiser, self.second) if optimiser is not None]

    def _clear_gradients(self) -> None:
        if self._forward_backward.recorded:
            return  # a replay overwrites them, in the memory it was recorded with
        for optimiser in self._optimisers:
            optimiser.zero_grad(set_to_none=True)

    def _within_memory(self, batch: Batch, normaliser: Tensor) -> tuple[Tensor, str | None]:
        message = None
        while True:
            try:
                self._forward_backward(images=batch.images, labels=batch.labels, normaliser=normaliser)
                return self._step_loss, message
            except torch.OutOfMemoryError:
                fits = self.part // 2  # memory is freed only after this block
            except ValueError as problem:
                if SINGLE_VALUE_ERROR not in str(problem):
                    raise
                raise UserError(
                    f"{self.part} image(s) of {batch.images.shape[-2]}x{batch.images.shape[-1]} at a time leave a "
                    "batch norm a single value per channel, which has no variance. "
                    "Use a larger --batch or --crop, or less `accumulate`."
                ) from None
            message = self._shrink(min(fits, len(batch.labels) // 2))

    def _shrink(self, fits: int) -> str:
        if fits < 1 or world().size > 1:
            raise UserError(
                f"out of memory with {self.part} images at a time. "
                + ("Use a smaller crop or network." if fits < 1 else "Raise `accumulate`, then resume.")
            )
        self._forward_backward = self._recordable()
        self._clear_gradients()
        self.guard.rewind()
        devices.release_memory(self.device)
        self.part = fits
        return (
            f"out of memory: the batch is now computed {fits} images at a time and accumulated; "
            "the gradient is the same, batch norms see smaller batches."
        )

    def _recordable(self) -> CapturedStep:
        """Return forward and backward pass as one unit; it is not recorded where several processes exchange data."""
        alone = world().size == 1
        return CapturedStep(self._backward, self.device, record=self.settings.record and alone)

    def _backward(self, images: Tensor, labels: Tensor, normaliser: Tensor) -> None:
        """Run the batch part by part, and add up the gradients and this process's share of the loss."""
        self._step_loss.zero_()
        count = len(labels)
        for start in range(0, count, self.part):
            part = slice(start, start + self.part)
            with self._communication(last=start + self.part >= count):
                with devices.autocast(self.device, self.settings.precision):
                    share = len(labels[part]) / count
                    loss = self._loss_of(images[part], labels[part], normaliser, share=share)
                (loss * self.guard.scale if self.guard.scaled else loss).backward()  # type: ignore[no-untyped-call]
            self._step_loss += loss.detach()

    def _loss_of(self, images: Tensor, labels: Tensor, normaliser: Tensor, *, share: float) -> Tensor:
        outputs = self.outputs(images)
        loss = self._criterion(outputs, labels, normaliser=normaliser)
        # DDP averages over processes, so a loss with a global normaliser is first multiplied by their number.
        loss = loss * (world().size if self.criterion.global_normaliser else share)
        if self.teacher is not None and self.settings.distill is not None:
            with torch.no_grad():
                target = self.teacher(images)
            aligned = self.criterion.align_corners
            loss = loss + share * distillation(
                outputs[MAIN], target, self.settings.distill, align_corners=aligned
            )
        return loss

    def _communication(self, *, last: bool) -> AbstractContextManager[object]:
        """Exchange gradients between processes once per step, with the last part."""
        wrapped = getattr(self.outputs, "_orig_mod", self.outputs)
        if isinstance(wrapped, DistributedDataParallel) and not last:
            return wrapped.no_sync()
        return nullcontext()

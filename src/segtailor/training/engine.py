"""One optimisation step: forward and backward in parts, loss scaling, clipping, update, averaging.

Nothing here waits for the device, so the host can run ahead; `report` is the place where it waits.
"""

from __future__ import annotations

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
from segtailor.training.averaging import Average
from segtailor.training.captured import CapturedStep
from segtailor.training.distill import distillation
from segtailor.training.distributed import add_up, parallel, world
from segtailor.training.guard import Guard
from segtailor.training.optimiser import divided, make_encoder_optimiser, make_optimiser, set_rate, update
from segtailor.training.settings import FitSettings

LONE_VALUE = "more than 1 value per channel"  # how torch's batch norm refuses its smallest input


class Report(NamedTuple):
    """What happened since the last report: mean loss of the good steps, skipped steps in all and in a row."""

    loss: float
    skipped: int
    row: int


class AllOutputs(nn.Module):
    """Gives every output of a network through plain `forward`, which wrappers such as DDP intercept."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Return outputs by name; a module without auxiliary outputs has only its main one."""
        forward_all = getattr(self.network, "forward_all", None)
        outputs: dict[str, Tensor] = forward_all(images) if forward_all else {MAIN: self.network(images)}
        return outputs


class Engine:
    """Everything that changes while training, apart from the counters of the job."""

    def __init__(
        self, network: nn.Module, criterion: Criterion, settings: FitSettings, *,
        device: torch.device, teacher: nn.Module | None = None,
    ) -> None:  # fmt: skip
        self.network = network
        self.criterion = criterion
        self.settings = settings
        self.device = device
        self.teacher = teacher
        self.part = max(1, settings.batch // world().size // settings.accumulate)  # images at a time
        self.optimiser = make_optimiser(network, settings)
        self.second = make_encoder_optimiser(network, settings)
        how = {"warm_up": settings.ema_warmup, "norms": settings.ema_norms}
        self.average = Average(network, decay=settings.ema, **how) if settings.ema else None
        self.guard = Guard(network, device, scaled=settings.precision == "fp16")
        wrapped = parallel(AllOutputs(network), device)
        self.outputs: nn.Module = torch.compile(wrapped) if settings.compile else wrapped  # type: ignore[assignment]
        # At full resolution a loss moves more memory than a small network: fused it is several times faster.
        self._criterion = torch.compile(criterion.__call__) if settings.compile else criterion
        self._parts = [part for part in divided(network, settings) if part]  # clipped apart
        frozen = network.modules() if settings.freeze_norms else ()
        self._frozen = [module for module in frozen if isinstance(module, BatchNorm)]
        self._loss, self._good = torch.zeros((), device=device), torch.zeros((), device=device)
        self._last = torch.zeros((), device=device)
        self._gradients = self._recordable()

    def step(self, batch: Batch, *, rate: float) -> str | None:
        """Take one step; return a message when the batch had to be divided because memory ran out."""
        for optimiser in self._optimisers:
            set_rate(optimiser, rate)
        for module in self._frozen:  # each time: validation switches the whole network back to training
            module.eval()
        images = devices.arrange(batch.images, channels_last=self.settings.channels_last_on(self.device))
        normaliser = add_up(self.criterion.normaliser(batch.labels))
        self.guard.open()
        loss, message = self._within_memory(Batch(images, batch.labels), normaliser)
        norm = torch.zeros((), device=self.device)
        for part in self._parts:
            gradients = [parameter.grad for parameter in part if parameter.grad is not None]
            self.guard.unscale(gradients)
            own = nn.utils.get_total_norm(gradients)
            if self.settings.clip is not None:
                nn.utils.clip_grads_with_norm_(part, self.settings.clip, own)
            norm = norm + own
        wrong = (~torch.isfinite(loss + norm)).float()
        mean_loss, votes = add_up(torch.stack([loss / world().size, wrong])).unbind()
        bad = votes > 0  # all processes skip together, or their weights would drift apart
        skip = self.guard.close(bad)
        for optimiser in self._optimisers:
            update(optimiser, skip=skip)
        self._forget_gradients()
        if self.average:
            self.average.update()
        self._loss += torch.where(bad, 0.0, mean_loss)
        self._good += ~bad
        return message

    @property
    def _optimisers(self) -> list[Optimizer]:
        return [optimiser for optimiser in (self.optimiser, self.second) if optimiser is not None]

    def _forget_gradients(self) -> None:
        if self._gradients.recorded:
            return  # a replay writes new ones over them, in the memory it was recorded with
        for optimiser in self._optimisers:
            optimiser.zero_grad(set_to_none=True)

    def report(self) -> Report:
        """Return what happened since the last report; waits for the device."""
        loss, good = torch.stack([self._loss, self._good]).tolist()
        skipped, row = self.guard.tally()
        self._loss.zero_()
        self._good.zero_()
        return Report(loss / good if good else float("nan"), skipped, row)

    def _within_memory(self, batch: Batch, normaliser: Tensor) -> tuple[Tensor, str | None]:
        message = None
        while True:
            try:
                self._gradients(images=batch.images, labels=batch.labels, normaliser=normaliser)
                return self._last, message
            except torch.OutOfMemoryError:
                fits = self.part // 2  # what failed is freed only after this block is left
            except ValueError as problem:
                if LONE_VALUE not in str(problem):
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
        self._gradients = self._recordable()
        self._forget_gradients()
        self.guard.rewind()
        devices.release_memory(self.device)
        self.part = fits
        return (
            f"out of memory: the batch is now computed {fits} images at a time and accumulated; "
            "the gradient is the same, batch norms see smaller batches."
        )

    def _recordable(self) -> CapturedStep:
        """Return forward and backward pass as one unit; several processes talk in between, which is not recorded."""
        alone = world().size == 1
        return CapturedStep(self._backward, self.device, record=self.settings.record and alone)

    def _backward(self, images: Tensor, labels: Tensor, normaliser: Tensor) -> None:
        """Run the batch part by part, adding up gradients; keep this process's share of the loss."""
        self._last.zero_()
        count = len(labels)
        for start in range(0, count, self.part):
            here = slice(start, start + self.part)
            with self._communication(last=start + self.part >= count):
                with devices.autocast(self.device, self.settings.precision):
                    loss = self._loss_of(
                        images[here], labels[here], normaliser, share=len(labels[here]) / count
                    )
                (loss * self.guard.scale if self.guard.scaled else loss).backward()  # type: ignore[no-untyped-call]
            self._last += loss.detach()

    def _loss_of(self, images: Tensor, labels: Tensor, normaliser: Tensor, *, share: float) -> Tensor:
        outputs = self.outputs(images)
        loss = self._criterion(outputs, labels, normaliser=normaliser)
        # DDP averages over processes: a sum over a global normaliser must first be multiplied by their number.
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
        """Exchange gradients between processes only once per step."""
        wrapped = getattr(self.outputs, "_orig_mod", self.outputs)
        if isinstance(wrapped, DistributedDataParallel) and not last:
            return wrapped.no_sync()
        return nullcontext()

"""The first stage of `staged`: a decoder alone, trained and scored on cached maps of a fixed encoder.

Maps that fit stay on the device, and steps are recorded as CUDA graphs where the device can, so that a step costs
little more than the decoder itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from segtailor.core.errors import Diverged
from segtailor.core.plan import MAIN
from segtailor.core.strategy import Trial
from segtailor.core.task import Task
from segtailor.data.batches import free_memory
from segtailor.nets.inference import inference
from segtailor.nets.network import Network, PartialNetwork
from segtailor.strategies.evaluators.features import FixedEncoder
from segtailor.tasks import Meter, Scores, kind_of
from segtailor.training import device as devices
from segtailor.training.device import CapturedStep
from segtailor.training.distill import distillation
from segtailor.training.optimiser import Average, make_optimiser

if TYPE_CHECKING:
    from segtailor.strategies.evaluators.staged import StagedEvaluator

JUDGE_BATCH = 16  # images
ORDER_STREAM = 2  # of random numbers for the order of images, apart from other streams
MAX_MEMORY_SHARE = 0.5  # of a device's free memory for maps that are kept there

Rows: TypeAlias = NDArray[np.int64]
MapArray: TypeAlias = NDArray[Any] | Tensor  # a memory-mapped file, or a copy on the device


class Maps(NamedTuple):
    """Maps to train on, maps to score on, and the teacher's logits: memory-mapped, or copied to a device (`on`)."""

    fit: Mapping[str, MapArray]
    judge: Mapping[str, Any]
    logits: MapArray | None = None

    def on(self, device: torch.device) -> Maps:
        """Copy what is trained on to the device, if there is room: reading it every time costs more than the decoder.

        For a CPU it stays memory-mapped: the files are in memory once they were read.
        """
        if device.type == "cpu":
            return self
        size = sum(array.nbytes for array in self._trained_on().values())
        return self.copied(device) if size <= MAX_MEMORY_SHARE * free_memory(device) else self

    def copied(self, device: torch.device) -> Maps:
        """Copy what is trained on to a device."""
        moved = {name: _copied(array, device) for name, array in self._trained_on().items()}
        logits = moved.pop("logits", None)
        return Maps(moved, self.judge, logits)

    def _trained_on(self) -> dict[str, MapArray]:
        return dict(self.fit) if self.logits is None else {**self.fit, "logits": self.logits}


class FirstStage:
    """The decoder of one network, trained and scored on maps."""

    def __init__(
        self, settings: StagedEvaluator, network: Network, encoder: FixedEncoder, task: Task,
        maps: Maps, device: torch.device,
    ) -> None:  # fmt: skip
        self.settings = settings
        self.maps = maps
        self.device = device
        self.task = task
        self.taps = encoder.taps(network.plan)
        self.decoder = PartialNetwork(network, inputs=self.taps, outputs=network.plan.outputs)
        devices.place(self.decoder, device, channels_last=settings.stage1.channels_last_on(device))
        self.criterion = kind_of(task).criterion(settings.stage1.loss, task=task, device=device)

    def train(self, trial: Trial) -> None:
        """Train; incomplete batches are left out, and the averaged weights stay in the network."""
        learner = DecoderLearner(self)
        self.decoder.train()
        for last_of_epoch, rows in self._order(trial):
            learner(self.batch(rows))
            if last_of_epoch and self.settings.average_each_epoch:
                learner.take_average()
        loss = float(learner.loss)
        if not math.isfinite(loss):
            raise Diverged(f"the first stage diverged: its loss is {loss}. Lower stage1.lr.")
        learner.take_average()

    def batch(self, rows: Rows) -> dict[str, Tensor]:
        """Return maps by their level, labels and, where there is a teacher, its logits."""
        batch = {name: self._taken(array, rows) for name, array in self.maps.fit.items()}
        if self.maps.logits is not None:
            batch["logits"] = self._taken(self.maps.logits, rows)
        return batch

    def loss(self, rows: Rows) -> Tensor:
        """Return the loss of some rows."""
        return self.loss_of(self.batch(rows))

    def loss_of(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the task's loss of all outputs at the size of the first map, plus the distillation loss."""
        labels, how = batch["labels"], self.settings.stage1
        with devices.autocast(self.device, how.precision):
            outputs = self.decoder(self._named(batch))
            loss = self.criterion(outputs, labels, normaliser=self.criterion.normaliser(labels))
            if "logits" in batch and how.distill is not None:
                loss = loss + distillation(outputs[MAIN], batch["logits"], how.distill, align_corners=False)
        return loss

    def score(self) -> Scores:
        """Score the main output on the half that trained no weights."""
        meter = kind_of(self.task).meter(self.task, self.device)
        labels = self.maps.judge["labels"]
        with inference(self.decoder):
            for start in range(0, len(labels), JUDGE_BATCH):
                rows = np.arange(start, min(start + JUDGE_BATCH, len(labels)))
                logits = self.decoder(self._values(self.maps.judge, rows))[MAIN]
                count(meter, logits, labels[rows], task=self.task, device=self.device)
        return meter.scores(without=self.settings.without(self.task))

    def _values(self, arrays: Mapping[str, MapArray], rows: Rows) -> dict[str, Tensor]:
        levels = range(len(self.taps))
        return self._named({f"tap{level}": self._taken(arrays[f"tap{level}"], rows) for level in levels})

    def _named(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: batch[f"tap{level}"] for level, name in enumerate(self.taps)}

    def _taken(self, array: MapArray, rows: Rows) -> Tensor:
        """Return some rows on the device, maps in the memory format that the decoder reads."""
        if isinstance(array, Tensor):
            chosen = torch.from_numpy(rows).to(self.device)
            if array.dim() != 4:
                return array.index_select(0, chosen)
            # in the order in which `_copied` stores it
            picked = array.permute(0, 2, 3, 1).index_select(0, chosen).permute(0, 3, 1, 2)
            return picked if self.settings.stage1.channels_last_on(self.device) else picked.contiguous()
        values = torch.from_numpy(array[rows]).to(self.device)
        if values.dim() != 4:
            return values
        return devices.arrange(values, channels_last=self.settings.stage1.channels_last_on(self.device))

    def _order(self, trial: Trial) -> Iterator[tuple[bool, Rows]]:
        """Yield the rows of each batch, and whether it is the last of its epoch."""
        total = len(self.maps.fit["labels"])
        batch = min(self.settings.stage1.batch, total)
        per_epoch = total // batch
        steps = max(1, round(self.settings.stage1.total(per_epoch) * trial.budget))
        for step in range(steps):
            epoch, batch_index = divmod(step, per_epoch)
            order = np.random.default_rng([ORDER_STREAM, trial.seed, epoch]).permutation(total)
            rows = order[batch_index * batch : (batch_index + 1) * batch]
            yield batch_index == per_epoch - 1, np.sort(rows)


class DecoderLearner:
    """Optimiser, average and the step itself; `loss` is that of the last step."""

    def __init__(self, stage: FirstStage) -> None:
        how = stage.settings.stage1
        devices.make_deterministic(on=how.deterministic)
        self._stage, self._clip = stage, how.clip
        self.loss = torch.zeros((), device=stage.device)
        self._optimiser = make_optimiser(stage.decoder, how)
        self._average = Average(stage.decoder, decay=how.ema, warm_up=how.ema_warmup) if how.ema else None
        # A decay that grows from step to step is computed on the host, so such steps cannot be recorded.
        recordable = devices.can_record(stage.device) and not (how.ema and how.ema_warmup)
        if recordable:
            devices.allow_recording(self._optimiser)
        self._step = CapturedStep(self._learn, stage.device, record=recordable)

    def __call__(self, batch: Mapping[str, Tensor]) -> None:
        """Take one step."""
        self._step(**batch)

    def take_average(self) -> None:
        """Copy the averaged weights, if there are any, into the decoder; statistics of norms do not change."""
        if self._average is not None:
            self._stage.decoder.load_state_dict(self._average.state(), strict=False)

    def _learn(self, **batch: Tensor) -> None:
        loss = self._stage.loss_of(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        if self._clip is not None:
            nn.utils.clip_grad_norm_(self._stage.decoder.parameters(), self._clip)
        self._optimiser.step()
        if self._average is not None:
            self._average.update()
        self._optimiser.zero_grad(set_to_none=True)
        self.loss.copy_(loss.detach())


def count(meter: Meter, logits: Tensor, labels: NDArray[Any], *, task: Task, device: torch.device) -> None:
    """Add the predictions of logits to a meter, at the size of the labels."""
    size = (int(labels.shape[1]), int(labels.shape[2]))
    predictions = kind_of(task).decode(logits, size, task=task, align_corners=False)
    meter.add(predictions, torch.from_numpy(np.array(labels)).to(device))


def _copied(array: MapArray, device: torch.device) -> Tensor:
    """Copy an array to a device; maps are stored channels last, so that picking rows copies whole pixels."""
    tensor = torch.from_numpy(np.array(array)) if isinstance(array, np.ndarray) else array
    if tensor.dim() != 4:
        return tensor.to(device)
    return tensor.to(device).permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)

"""Training as a job: a plain loop over steps, resumable after each one, the same on one process and on many.

The walk of one step: `Fit.steps` takes a batch, `Engine.step` runs the network, the loss and the update.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from segtailor.core.codec import Json, from_json, to_json
from segtailor.core.errors import Diverged, RunProblem, UserError
from segtailor.core.job import Step
from segtailor.core.memory import check_memory
from segtailor.core.plan import Plan
from segtailor.core.task import KIND_FACTS, Preprocessing, Task
from segtailor.data.batches import BATCH_BYTES_PER_PIXEL, Batch
from segtailor.nets.inference import aligns_corners
from segtailor.ops import Sum
from segtailor.tasks import Scores, kind_of
from segtailor.training import device as devices
from segtailor.training.distributed import broadcast_from_first, convert_to_sync_norms, world
from segtailor.training.engine import Engine
from segtailor.training.evaluate import LabelledImages, evaluate
from segtailor.training.optimiser import load_optimiser, optimiser_state
from segtailor.training.pace import Allowance, Pace
from segtailor.training.settings import FitSettings
from segtailor.training.state import read_state, write_state
from segtailor.training.threads import Threads, chosen_threads

# The time of a step is estimated after so many steps, or so large a share of the time: the first steps are slow.
ESTIMATE_STEPS, ESTIMATE_SHARE = 20, 0.2
FEWER_STEPS_SHARE = 0.9  # of the planned steps: the user is told when at most so many fit

TUNED_STEPS = 1000  # of a training: in shorter ones, timing kernels costs more than better ones save


class BatchSource(Protocol):
    """Training batches as a pure function of the step (`data.batches.Batches`)."""

    labels: NDArray[Any]

    @property
    def steps_per_epoch(self) -> int:
        """The number of steps in which every image occurs once."""

    def at(self, step: int) -> Batch:
        """Return this process's share of the batch of `step`."""


class BatchFactory(Protocol):
    """Makes the batches when the number of processes is known, e.g. `partial(Batches, images=..., ...)`."""

    def __call__(self, *, batch: int, seed: int, rank: int, world: int) -> BatchSource:
        """Return the batches of process `rank` of `world`."""


@dataclass(kw_only=True, eq=False, repr=False)
class Fit:
    """Trains `network` in place. A `Job`: iterate `steps`, save and load between two of them.

    `weights` gives the outcome: the averaged weights where an average is kept, otherwise the network's own.
    """

    network: nn.Module
    batches: BatchFactory
    settings: FitSettings
    task: Task
    device: torch.device
    validation: LabelledImages | None = None
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    teacher: nn.Module | None = None
    carried: Collection[str] = frozenset()  # names of parameters that came from a start

    def __post_init__(self) -> None:
        settings = self.settings
        if settings.distill is not None and self.teacher is None:
            raise UserError(
                "distill is set but no teacher is given; give a teacher network or leave distill out."
            )
        devices.make_deterministic(on=settings.deterministic)
        devices.seed_everything(settings.seed + world().rank)
        if settings.sync_bn:
            self.network = convert_to_sync_norms(self.network, self.device)
        devices.place(self.network, self.device, channels_last=settings.channels_last_on(self.device)).train()
        drop_in_training(self.network, depth=settings.stochastic_depth, channels=settings.dropout)
        if self.teacher is not None:
            devices.place(
                self.teacher, self.device, channels_last=settings.channels_last_on(self.device)
            ).eval().requires_grad_(False)
        rank, size = world()
        self.source = self.batches(batch=settings.batch, seed=settings.seed, rank=rank, world=size)
        self._check_memory()
        criterion = kind_of(self.task).criterion(
            settings.loss,
            task=self.task,
            device=self.device,
            align_corners=aligns_corners(self.network),
            seen=lambda: self.source.labels,
        )
        self.engine = Engine(
            self.network,
            criterion,
            settings,
            device=self.device,
            teacher=self.teacher,
            carried=self.carried,
        )
        self.total = settings.total(self.source.steps_per_epoch)
        devices.tune_kernels(on=self.total >= TUNED_STEPS)
        self.allowance = Allowance(settings.seconds)
        self._shortage_told = False
        self.done = 0
        self.scores: Scores | None = None
        self.best: dict[str, float] = {}

    def _check_memory(self) -> None:
        """Refuse a batch that cannot fit: a backward pass keeps the inputs of every layer and of its norm.

        Only on a CPU, where the system would swap and then end the process. An accelerator reports when it is full,
        and the step continues with parts of the batch.
        """
        plan, augment = getattr(self.network, "plan", None), getattr(self.source, "augment", None)
        if not isinstance(plan, Plan) or augment is None or self.device.type != "cpu":
            return
        share = self.settings.batch // world().size // max(1, self.settings.accumulate)
        height, width = augment.crop
        values = sum(math.prod(plan.shape(node.name)) for node in plan.nodes)
        at_crop = values * height * width // (plan.image.height * plan.image.width)
        value_bytes = 4 if self.settings.precision == "fp32" else 2
        check_memory(
            share * (2 * at_crop * value_bytes + height * width * BATCH_BYTES_PER_PIXEL),
            what=f"training on {share} crops of {height}x{width} at a time",
            remedy="Choose a smaller batch (--batch) or smaller crops (--crop).",
        )

    def steps(self) -> Iterator[Step]:
        """Train, yielding a record about twice a second and after each validation, which asks for a checkpoint.

        All processes yield after the same steps, so that the caller can exchange data between them.
        """
        with chosen_threads(self.device, fixed=self.settings.deterministic) as threads:
            yield from self._steps(threads)

    def _steps(self, threads: Threads) -> Iterator[Step]:
        pace = Pace(self.done, agree=partial(broadcast_from_first, device=self.device))
        self.allowance.begin()
        messages: list[str] = []
        while self.done < self.total:
            message = self.engine.step(self.source.at(self.done), rate=self.rate)
            messages += [message] if message else []
            self.done += 1
            due = self._validation_due()
            if due or messages or pace.due(self.done) or self.done == self.total:
                record, seconds = self._progress(pace)
                remarks = [
                    threads.observe(steps=self.done - pace.since, seconds=seconds),
                    self._shorten(),
                ]
                due = due or self._validation_due()
                if due:
                    record = self._validated(record)
                message = " ".join([*messages, *filter(None, remarks)]) or None
                yield replace(record, total=self.total, message=message, checkpoint=due or bool(messages))
                pace.rest(self.done, seconds=seconds)
                messages = []

    def _shorten(self) -> str | None:
        """Plan fewer steps if the machine is too slow for all of them; return a message the first time."""
        if self.allowance.seconds is None:
            return None
        if self.done < ESTIMATE_STEPS and self.allowance.spent < ESTIMATE_SHARE * self.allowance.seconds:
            return None
        planned = self.settings.total(self.source.steps_per_epoch)
        least = min(self.settings.least_steps, planned)
        self.total = broadcast_from_first(
            self.allowance.total(self.done, planned, least=least), device=self.device
        )
        if self._shortage_told or self.total > FEWER_STEPS_SHARE * planned:
            return None
        self._shortage_told = True
        return f"about {self.total} of at most {planned} steps fit the time."

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        per_epoch = self.source.steps_per_epoch
        return self.settings.lr * self.settings.schedule.factor(
            self.done, total=self.total, steps_per_epoch=per_epoch
        )

    def validate(self) -> Scores:
        """Score the validation images with the weights that `weights` would return now."""
        if self.validation is None:
            raise UserError("no validation images were given; pass a validation split.")
        if self.engine.average is None:
            return self._evaluate(self.validation)
        with self.engine.average.applied():
            return self._evaluate(self.validation)

    def weights(self) -> dict[str, Tensor]:
        """Return the trained state dictionary, averaged where an average is kept."""
        state = {name: value.detach().clone() for name, value in self.network.state_dict().items()}
        if self.engine.average is not None:
            state.update({name: value.clone() for name, value in self.engine.average.state().items()})
        return state

    def save(self, folder: Path) -> None:
        """Write the whole state; no other process needs to take part."""
        engine = self.engine
        groups = {
            "network": self.network.state_dict(),
            "optimiser": optimiser_state(engine.optimiser),
            "encoder": optimiser_state(engine.second) if engine.second else {},
            "guard": engine.guard.state(),
            "rng": devices.rng_state(self.device),
            "average": engine.average.state() if engine.average else {},
        }
        counters: dict[str, Json] = {
            "done": self.done,
            "part": engine.part,
            "updates": engine.average.updates if engine.average else 0,
            "scores": to_json(self.scores) if self.scores else None,
            "best": dict(self.best),
            "total": self.total,
            "seconds": self.allowance.spent,
        }
        write_state(folder, groups, counters)

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote for the same network and settings."""
        groups, counters = read_state(folder)
        engine = self.engine
        try:
            self.network.load_state_dict(groups["network"])
            if engine.average is not None:
                engine.average.load(groups["average"], updates=counters["updates"])
            load_optimiser(engine.optimiser, groups.get("optimiser", {}))
            if engine.second is not None:
                load_optimiser(engine.second, groups.get("encoder", {}))
            engine.guard.load(groups["guard"])
            self.done, engine.part = int(counters["done"]), int(counters["part"])
            self.best = dict(counters["best"])
            self.total = int(counters.get("total", self.total))
            self.allowance.begin(float(counters.get("seconds", 0.0)))
            scores = counters["scores"]
        except (KeyError, IndexError, RuntimeError) as problem:
            raise RunProblem(
                f"the training state in {folder} belongs to another network or other settings ({problem}); "
                "resume with the recipe it was started with."
            ) from None
        scores_type = kind_of(self.task).scores_type
        self.scores = from_json(scores_type, scores, what="validation scores") if scores else None
        devices.restore_rng(groups["rng"], self.device)

    def result(self) -> Mapping[str, Json]:
        """Return steps, skipped steps and the last and best validation figures."""
        result: dict[str, Json] = {
            "steps": self.done,
            "skipped": self.engine.guard.tally().skipped,
            "best": dict(self.best),
        }
        return {**result, **(self.scores.document(self.task.classes) if self.scores else {})}

    def _validation_due(self) -> bool:
        if self.validation is None:
            return False
        every = self.settings.validate_every * self.source.steps_per_epoch
        return self.done == self.total or (every > 0 and self.done % every == 0)

    def _progress(self, pace: Pace) -> tuple[Step, float]:
        loss, skipped, row = self.engine.report()
        seconds = pace.seconds()
        if row >= self.settings.patience:
            raise Diverged(
                f"training diverged: {row} steps in a row had a non-finite loss or gradient at step {self.done}. "
                "The last checkpoint is kept. Lower lr, add warm-up or clipping, or train in fp32."
            )
        speed = (self.done - pace.since) * self.settings.batch / seconds
        metrics = {"lr": self.rate, "images_per_s": speed, "skipped": float(skipped)}
        if math.isfinite(loss):  # not where every step was skipped
            metrics["loss"] = loss
        step = Step(phase="train", done=self.done, total=self.total, metrics=metrics, best=dict(self.best))
        return step, seconds

    def _validated(self, record: Step) -> Step:
        self.scores = scores = self.validate()
        headline = KIND_FACTS[self.task.kind].headline.name
        if scores.quality > self.best.get(headline, -1.0):
            self.best = {headline: scores.quality, "step": self.done}
        return replace(record, metrics={**record.metrics, **scores.figures()}, best=dict(self.best))

    def _evaluate(self, images: LabelledImages) -> Scores:
        return evaluate(
            self.network,
            images,
            task=self.task,
            preprocessing=self.preprocessing,
            device=self.device,
            batch=self.settings.validate_batch,
        )


def drop_in_training(network: nn.Module, *, depth: float, channels: float) -> None:
    """Let a network leave out parts of its residual sums while it is trained, so that it relies on no single path.

    Stochastic depth (Huang et al., ECCV 2016) leaves out what a residual block adds, for whole images: for the share
    `depth` of them at the last block, linearly less at earlier ones. Dropout of channels (Tompson et al., CVPR 2015)
    leaves out single feature maps, the share `channels`. The rest is scaled up, so that the expected sum is the same.
    """
    if not depth and not channels:
        return
    plan = getattr(network, "plan", None)
    bodies = residual_bodies(plan) if isinstance(plan, Plan) else ()
    if not bodies:
        raise UserError(
            "stochastic_depth and dropout leave out what residual sums add, and this network has no such sums; "
            "leave them out."
        )
    for number, name in enumerate(bodies, start=1):
        share = depth * number / len(bodies)
        network.nodes[name].register_forward_hook(partial(_drop, depth=share, channels=channels))  # type: ignore[index, union-attr]


def residual_bodies(plan: Plan) -> tuple[str, ...]:
    """Return, in order, the nodes that a sum adds to a feature map from which they were computed."""
    ancestors: dict[str, frozenset[str]] = {}
    bodies = []
    for node in plan.nodes:
        ancestors[node.name] = frozenset(node.inputs).union(
            *(ancestors.get(name, ()) for name in node.inputs)
        )
        if isinstance(plan.call(node.name).op, Sum):
            bodies += [
                name
                for name in node.inputs
                if any(other in ancestors.get(name, ()) for other in node.inputs if other != name)
            ]
    return tuple(bodies)


def _drop(module: nn.Module, _: object, maps: Tensor, *, depth: float, channels: float) -> Tensor:
    if not module.training:
        return maps
    for share, width in ((depth, 1), (channels, maps.shape[1])):
        if share:
            mask = torch.rand((len(maps), width, 1, 1), device=maps.device) >= share
            maps = maps * (mask / (1 - share)).to(maps.dtype)
    return maps

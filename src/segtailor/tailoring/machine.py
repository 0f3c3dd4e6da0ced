"""How fast the machine trains and the target runs networks of a system: measured when a plan asks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from random import Random
from statistics import median
from typing import Literal, NamedTuple, Protocol, TypeAlias

from segtailor.core.job import Step
from segtailor.core.space import Architecture
from segtailor.core.target import parse_target, timed_stages
from segtailor.core.variation import sample
from segtailor.data.dataset import Dataset, preprocessing_of
from segtailor.recipes.recipe import Recipe
from segtailor.recipes.search import SearchRecipe, fitted_to_bands
from segtailor.recipes.train import TrainRecipe, usual_augment
from segtailor.runs import Context
from segtailor.spaces.networks import count, resolve
from segtailor.strategies.gradient_settings import Gradient
from segtailor.tailoring.recipe import GIGA, TrainingSpeed
from segtailor.targets.graph import quick_form
from segtailor.targets.timing import TimingSettings
from segtailor.training.device import pick_device
from segtailor.training.fit import TUNED_STEPS
from segtailor.training.settings import FitSettings
from segtailor.verbs.bench import bench
from segtailor.verbs.search import system_recipe

LPSNET_EXAMPLES = ("lpsnet-step0", "lpsnet-s", "lpsnet-l")  # small, usual, large
RANDOM_EXAMPLES = (
    16  # random networks, of which the smallest, the middle and the largest are examples of a space
)
COUNTING_SIZE = (64, 128)  # height and width at which these are sorted by size
MAX_WORKERS = 4  # candidates that are trained at once on a processor
MIN_TIMED_RUNS = 50  # of a network
WARM_UP_STEPS = 3  # of a probe, before its steps are timed
MIN_PROBE_STEPS, MIN_PROBE_SECONDS = 5, 2.0  # that are timed
ENDLESS_STEPS = 1_000_000
PLANNING_STEPS = (
    TUNED_STEPS - 1
)  # of a training for which no kernels are chosen: that takes longer than the probe
PRETRAINING_STEP = 0.5  # seconds of a step that trains weights alone, in those of a step of the search
MIN_WORK_RATIO = 1.5  # two networks closer than this do not tell how time grows with work

Example: TypeAlias = str | Architecture  # the name of a published network, or an architecture
Examples: TypeAlias = tuple[Example, Example, Example]  # small, usual, large


class SizeRange(NamedTuple):
    """Multiply-accumulates of the smallest and of the largest network that a search may find."""

    least: float
    most: float


class MachineFacts(Protocol):
    """Where training happens, and how fast networks of the system are there and on the target."""

    @property
    def accelerator(self) -> bool:
        """Whether training happens on something faster than the processor."""

    @property
    def workers(self) -> int:
        """How many candidates are trained at once."""

    @property
    def precision(self) -> Literal["fp32", "bf16"]:
        """The number format of the trainings."""

    def speed(self, crop: tuple[int, int], batch: int) -> TrainingSpeed:
        """Return how fast networks are trained at a crop and batch."""

    def macs_per_ms(self, image: tuple[int, int], milliseconds: float) -> float:
        """Return the multiply-accumulates per millisecond of a network with this latency on the target."""

    def sizes(self, crop: tuple[int, int]) -> SizeRange:
        """Return how small and large networks are at a size."""

    def supernet(self) -> float | None:
        """Return the seconds of a step of the system's supernet, if it has one."""


@dataclass(frozen=True, kw_only=True)
class MeasuredMachine:
    """This machine and a target, measured with networks of a system; see `MachineFacts`. `data` names the dataset."""

    system: str
    target: str
    data: str
    dataset: Dataset
    context: Context

    @property
    def accelerator(self) -> bool:
        """Whether training happens on something faster than the processor."""
        return pick_device(self.context.device).type != "cpu"

    @property
    def workers(self) -> int:
        """How many candidates are trained at once."""
        return 1 if self.accelerator else min(os.cpu_count() or 1, MAX_WORKERS)

    @property
    def precision(self) -> Literal["fp32", "bf16"]:
        """The number format of the trainings."""
        return "bf16" if self.accelerator else "fp32"

    def speed(self, crop: tuple[int, int], batch: int) -> TrainingSpeed:
        """Train a small and a usual network of the system for a few steps."""
        fit = FitSettings(batch=batch, precision=self.precision, optimiser="adamw")
        points = []
        for model in self._examples[:2]:
            recipe = TrainRecipe(
                architecture=resolve(model),
                data=self.data,
                augment=usual_augment(self.dataset.task.kind, crop),
                fit=fit,
                val_split=None,
                reparameterise=True,
                preprocessing=preprocessing_of(self.dataset),
            )
            step = step_seconds(recipe, self.context, steps=PLANNING_STEPS)
            points.append((batch * count(model, image=crop).macs, step))
        (small, quick), (large, slow) = points
        if large < MIN_WORK_RATIO * small:
            return TrainingSpeed(base=(quick + slow) / 2, per_gmac=0.0)
        slope = max((slow - quick) / (large - small), 0.0)
        return TrainingSpeed(base=max(quick - slope * small, 1e-4), per_gmac=GIGA * slope)

    def macs_per_ms(self, image: tuple[int, int], milliseconds: float) -> float:
        """Time a small and a usual network of the system on the target, from image to labels as the budget is."""
        small, usual, _ = self._examples
        return rate_at(milliseconds, self._timed(small, image), self._timed(usual, image))

    def _timed(self, network: Example, image: tuple[int, int]) -> tuple[float, float]:
        """Return milliseconds and multiply-accumulates; the fastest run counts, as others may have been disturbed."""
        (row,) = bench(
            [network],
            [str(quick_form(parse_target(self.target)))],
            image=image,
            includes=timed_stages(self.target),
            classes=self.dataset.task.outputs,
            settings=timing_settings(1.0),
            channels=preprocessing_of(self.dataset).channels,
        )
        return row.min_ms, count(network, image=image).macs

    def sizes(self, crop: tuple[int, int]) -> SizeRange:
        """Count the smallest and the largest example."""
        small, _, large = self._examples
        return SizeRange(count(small, image=crop).macs, count(large, image=crop).macs)

    def supernet(self) -> float | None:
        """Train the supernet of the system, if it has one, for a few steps."""
        strategy = self._search.strategy
        return (
            supernet_seconds(self._search, strategy, self.context) if isinstance(strategy, Gradient) else None
        )

    @cached_property
    def _search(self) -> SearchRecipe:
        recipe = system_recipe(
            self.system, self.data, scale="small", context=self.context, dataset=self.dataset
        )
        return fitted_to_bands(recipe, self.dataset)

    @cached_property
    def _examples(self) -> Examples:
        """A small, a usual and a large network of the system: published ones, or random ones of its space.

        Options are sorted from small to large where they have an order, so the first ones make one of the smallest.
        """
        if self.system == "lpsnet":
            return LPSNET_EXAMPLES
        space, rng = self._search.space, Random(0)
        networks = [sample(space, rng) for _ in range(RANDOM_EXAMPLES)]
        networks.append(space.architecture({decision.name: 0 for decision in space.decisions}))
        networks.sort(key=lambda arch: count(arch, image=COUNTING_SIZE).macs)
        return networks[0], networks[RANDOM_EXAMPLES // 2], networks[-1]


def timing_settings(seconds: float) -> TimingSettings:
    """Return how networks are timed within a tailoring."""
    return TimingSettings(
        runs=MIN_TIMED_RUNS, seconds=seconds, warm_up_limit=min(10.0, max(0.5, 10 * seconds))
    )


def rate_at(milliseconds: float, small: tuple[float, float], usual: tuple[float, float]) -> float:
    """Return multiply-accumulates (MACs) per millisecond at a latency, from (milliseconds, MACs) of two networks.

    Every network has some overhead, so that small ones do less per millisecond: the rate lies on the line through the
    two points, and is that of the smaller network below it.
    """
    (small_ms, small_macs), (usual_ms, usual_macs) = small, usual
    if usual_ms <= small_ms or usual_macs <= small_macs:
        return usual_macs / usual_ms
    if milliseconds <= small_ms:
        return small_macs / small_ms
    slope = (usual_macs - small_macs) / (usual_ms - small_ms)
    return (small_macs + (milliseconds - small_ms) * slope) / milliseconds


def step_seconds(recipe: TrainRecipe, context: Context, *, steps: int = ENDLESS_STEPS) -> float:
    """Return how long a step of a training of `steps` takes; nothing is written but the cache of decoded images.

    A training reports its progress about twice a second, after its device has done these steps. The median of these
    intervals counts, so that a moment in which the machine is busy does not.
    """
    endless = replace(recipe, val_split=None, fit=replace(recipe.fit, steps=steps, seconds=None))
    moments: list[tuple[int, float]] = []
    for step in _steps(endless, context):
        if step.done >= WARM_UP_STEPS:
            moments.append((step.done, time.perf_counter()))
        if moments and _long_enough(moments[0], moments[-1]):
            break
    return median((end - begin) / (done - before) for (before, begin), (done, end) in pairwise(moments))


def _long_enough(first: tuple[int, float], last: tuple[int, float]) -> bool:
    return last[0] >= first[0] + MIN_PROBE_STEPS and last[1] >= first[1] + MIN_PROBE_SECONDS


def supernet_seconds(recipe: SearchRecipe, strategy: Gradient, context: Context) -> float:
    """Return how long a step of a search by gradients takes, with its share of the training before the search."""
    short, share = replace(strategy, fit=replace(strategy.fit, steps=2)), 0.0
    if strategy.pretraining is not None:
        share = pretraining_share(strategy)
        ahead = replace(strategy.pretraining, fit=replace(strategy.pretraining.fit, steps=1))
        short = replace(short, pretraining=ahead)
    begin = 0.0
    for step in _steps(replace(recipe, strategy=short), context):
        if step.phase == "search" and step.done == step.total:
            break  # the final choice is not timed
        begin = time.perf_counter()
    return (1 + PRETRAINING_STEP * share) * (time.perf_counter() - begin)


def pretraining_share(strategy: Gradient) -> float:
    """Return the steps of the training before a search by gradients, in steps of the search."""
    if strategy.pretraining is None:
        return 0.0
    return (strategy.pretraining.fit.steps or 0) / (strategy.fit.steps or 1)


def _steps(recipe: Recipe, context: Context) -> Iterator[Step]:
    alone = Context(cache=context.cache, device=context.device, trusted=context.trusted)
    return iter(recipe.job(alone).steps())

"""What a plan must know of the machine and the target: measured with networks of the system when a choice asks."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from random import Random

from segtailor.core.registry import SPACES
from segtailor.core.space import Architecture
from segtailor.core.variation import sample
from segtailor.data.locate import locate
from segtailor.recipes.search import SearchRecipe
from segtailor.runs import Context
from segtailor.spaces.networks import count
from segtailor.tailoring.choosing import Sizes, usual_system
from segtailor.tailoring.context import timing
from segtailor.tailoring.facts import on_accelerator
from segtailor.tailoring.searches import by_gradients
from segtailor.tailoring.settings import LABELS, Request, Speed
from segtailor.tailoring.speed import measure_speed, supernet_seconds
from segtailor.verbs import search
from segtailor.verbs.bench import bench

SMALLEST, USUAL, LARGEST = (
    "lpsnet-step0",
    "lpsnet-s",
    "lpsnet-l",
)  # of the only family that is published in steps
SAMPLES = 16  # random networks that tell what a space holds


@dataclass(frozen=True, kw_only=True)
class MeasuredMachine:
    """This machine, for one request; see `choosing.Machine`."""

    request: Request
    data: str
    around: Context

    @property
    def accelerator(self) -> bool:
        """Whether training happens on something faster than the processor."""
        return on_accelerator(self.around.device)

    @property
    def workers(self) -> int:
        """How many candidates are trained at once."""
        return 1 if self.accelerator else min(os.cpu_count() or 1, 4)

    @property
    def precision(self) -> str:
        """What training computes in."""
        return "bf16" if self.accelerator else "fp32"

    def speed(self, crop: tuple[int, int], batch: int) -> Speed:
        """Train a small and a usual network of the system for a few steps."""
        small, usual, _ = self._examples
        return measure_speed(
            (small, usual),
            self.data,
            crop=crop,
            batch=batch,
            precision=self.precision,
            around=self.around,
        )

    def macs_per_ms(self, image: tuple[int, int], milliseconds: float) -> float:
        """Time a small and a usual network of the system on the target, up to labels: what the budget is for."""
        small, usual = (self._timed(network, image) for network in self._examples[:2])
        return rate_at(milliseconds, small, usual)

    def _timed(self, network: str | Architecture, image: tuple[int, int]) -> tuple[float, float]:
        """Time a network by itself, undisturbed: its fastest run, since a busy moment says nothing of what fits."""
        classes = locate(self.data).task.outputs
        (row,) = bench(
            [network],
            [self.request.target],
            image=image,
            includes=LABELS,
            classes=classes,
            settings=timing(1.0),
        )
        return row.min_ms, count(network, image=image).macs

    def sizes(self, crop: tuple[int, int]) -> Sizes:
        """Count the smallest and the largest network that a search may come to."""
        small, _, large = self._examples
        return Sizes(count(small, image=crop).macs, count(large, image=crop).macs)

    def supernet(self) -> float | None:
        """Train the supernet of the system, if it has one, for a few steps."""
        recipe = self._search
        return supernet_seconds(recipe, self.around) if by_gradients(recipe) else None

    @cached_property
    def _search(self) -> SearchRecipe:
        return search.search_recipe(usual_system(self.request), self.data, surroundings=self.around)

    @cached_property
    def _examples(self) -> tuple[str | Architecture, str | Architecture, str | Architecture]:
        """A small, a usual and a large network of the system: published ones, or random ones of its space.

        Options go from small to large where they have an order, so the first of each make one of the smallest.
        """
        if usual_system(self.request) == "lpsnet":
            return SMALLEST, USUAL, LARGEST
        space, rng = self._search.space.build(SPACES), Random(0)
        networks = [sample(space, rng) for _ in range(SAMPLES)]
        networks.append(space.architecture({decision.name: 0 for decision in space.decisions}))
        found = sorted(networks, key=lambda arch: count(arch, image=(64, 128)).macs)
        return found[0], found[SAMPLES // 2], found[-1]


def rate_at(milliseconds: float, small: tuple[float, float], usual: tuple[float, float]) -> float:
    """Return work per millisecond at a latency, from the (milliseconds, work) of two networks.

    Every network spends some time that does no work, so small ones do less per millisecond: on the line through the
    two, and below the smaller one in its proportion.
    """
    (short, little), (long, much) = small, usual
    if long <= short or much <= little:
        return much / long
    if milliseconds <= short:
        return little / short
    return (little + (milliseconds - short) * (much - little) / (long - short)) / milliseconds

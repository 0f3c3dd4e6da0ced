"""How fast this machine trains: short probes of the very networks that a tailoring is about."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

from segtailor.core.job import Step
from segtailor.core.space import Architecture
from segtailor.recipes.recipe import Recipe, parse_recipe, recipe_document, set_fields
from segtailor.recipes.search import SearchRecipe
from segtailor.recipes.train import TrainRecipe, train_recipe
from segtailor.runs import Context
from segtailor.spaces.networks import count
from segtailor.tailoring.settings import GIGA, Speed

WARM = 3  # steps before a probe counts
TIMED, TIMED_SECONDS = 5, 2.0  # steps and seconds that count, at least
ENDLESS = 1_000_000  # steps
AHEAD = 0.5  # a step ahead of a search trains weights alone: about half of one that learns choices, too
ALIKE = 1.5  # two networks whose work differs by less than this tell nothing about a slope


def measure_speed(
    models: Sequence[str | Architecture],
    data: str,
    *,
    crop: tuple[int, int],
    batch: int,
    precision: str,
    around: Context,
) -> Speed:
    """Train two networks, the smaller first, for a few steps each."""
    points = []
    for model in models:
        changes = [
            f"fit.batch={batch}",
            f"fit.precision={precision}",
            "fit.optimiser=adamw",
            "reparameterise=true",
        ]
        recipe = train_recipe(model, data, crop=crop, changes=changes, surroundings=around)
        points.append((batch * count(model, image=crop).macs, step_seconds(recipe, around)))
    (small, quick), (large, slow) = points
    if large < ALIKE * small:
        return Speed(base=(quick + slow) / 2, per_gmac=0.0)
    slope = max((slow - quick) / (large - small), 0.0)
    return Speed(base=max(quick - slope * small, 1e-4), per_gmac=GIGA * slope)


def step_seconds(recipe: TrainRecipe, around: Context) -> float:
    """Return how long a step of a training takes; nothing is written but the cache of decoded images.

    A training tells its progress about twice a second, and only when its device has done what it tells of. The middle
    of these counts, so that a moment in which the machine is busy does not.
    """
    endless = replace(recipe, val_split=None, fit=replace(recipe.fit, steps=ENDLESS, seconds=None))
    moments: list[tuple[int, float]] = []
    for step in _steps(endless, around):
        if step.done >= WARM:
            moments.append((step.done, time.perf_counter()))
        if moments and _long_enough(moments[0], moments[-1]):
            break
    return median((end - begin) / (done - before) for (before, begin), (done, end) in pairwise(moments))


def _long_enough(first: tuple[int, float], last: tuple[int, float]) -> bool:
    return last[0] >= first[0] + TIMED and last[1] >= first[1] + TIMED_SECONDS


def supernet_seconds(recipe: SearchRecipe, around: Context) -> float:
    """Return how long a step of a search by gradients takes, with its share of the training ahead of it."""
    settings = recipe.strategy.settings
    changes = ["strategy.settings.fit.steps=2"]
    share = 0.0
    if settings["pretraining"] is not None:
        share = settings["pretraining"]["fit"]["steps"] / settings["fit"]["steps"]
        changes.append("strategy.settings.pretraining.fit.steps=1")
    short = parse_recipe(set_fields(recipe_document(recipe), changes), what="recipe")
    begin = 0.0
    for step in _steps(short, around):
        if step.phase == "search" and step.done == step.total:
            break  # choosing is not waited for
        begin = time.perf_counter()
    return (1 + AHEAD * share) * (time.perf_counter() - begin)


def _steps(recipe: Recipe, around: Context) -> Iterator[Step]:
    job = recipe.job(Context(folder=Path(), cache=around.cache, device=around.device))
    return iter(job.steps())

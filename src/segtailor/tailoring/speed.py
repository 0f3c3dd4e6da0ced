"""How fast this machine trains: short probes of the very networks that a tailoring is about."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from segtailor.api.networks import count
from segtailor.api.training import Surroundings, train_recipe
from segtailor.core.job import Step
from segtailor.core.space import Architecture
from segtailor.recipes.overrides import overridden
from segtailor.recipes.recipe import Place, Recipe, parse_recipe, recipe_document
from segtailor.recipes.searching import SearchRecipe
from segtailor.recipes.training import TrainRecipe
from segtailor.tailoring.searches import supernet_changes
from segtailor.tailoring.settings import GIGA, Speed

WARM, TIMED = 2, 5  # steps
SUPERNET_TIMED = 3  # steps of a supernet, each of which takes as long as several of a network
ALIKE = 1.5  # two networks whose work differs by less than this tell nothing about a slope


def measure_speed(
    models: Sequence[str | Architecture],
    data: str,
    *,
    crop: tuple[int, int],
    batch: int,
    precision: str,
    around: Surroundings,
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


def step_seconds(recipe: TrainRecipe, around: Surroundings) -> float:
    """Return how long a step of a training takes; nothing is written but the cache of decoded images."""
    short = replace(recipe, val_split=None, fit=replace(recipe.fit, steps=WARM))
    long = replace(short, fit=replace(recipe.fit, steps=WARM + TIMED))
    seconds = [_seconds(one, around) for one in (short, long)]
    return max(seconds[1] - seconds[0], 1e-4) / TIMED


def supernet_seconds(recipe: SearchRecipe, around: Surroundings) -> float:
    """Return how long a step of a search by gradients takes, with its share of the training ahead of it."""
    settings = recipe.strategy.settings
    ahead = settings["pretraining"]
    share = 0.0 if ahead is None else ahead["fit"]["steps"] / settings["fit"]["steps"]
    changes = supernet_changes(recipe, 1 + SUPERNET_TIMED)
    if ahead is not None:
        changes[-1] = f"strategy.settings.pretraining.fit.steps={1 + SUPERNET_TIMED}"
    short = parse_recipe(overridden(recipe_document(recipe), changes), what="recipe")
    found = _phases(_steps(short, around))
    return found["search"] + share * found.get("pretrain", 0.0)


def _phases(steps: Iterator[Step]) -> dict[str, float]:
    """Return the seconds of a step of each phase, the first one left out; choosing is not waited for."""
    found: dict[str, float] = {}
    phase, since, first = "", 0.0, 0
    for step in steps:
        if step.phase != phase:
            phase, since, first = step.phase, time.perf_counter(), step.done
        if step.done == step.total:
            found[phase] = (time.perf_counter() - since) / max(1, step.done - first)
        if "search" in found:
            break
    return found


def _seconds(recipe: TrainRecipe, around: Surroundings) -> float:
    begin = time.perf_counter()
    for _ in _steps(recipe, around):
        pass
    return time.perf_counter() - begin


def _steps(recipe: Recipe, around: Surroundings) -> Iterator[Step]:
    job = recipe.job(Place(folder=Path(), cache=around.cache, device=around.device))
    return iter(job.steps())

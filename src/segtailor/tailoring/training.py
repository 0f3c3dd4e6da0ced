"""The stages that train: a larger sibling as teacher, the network found, and ready networks beside it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from segtailor.api.networks import architectures, count, resolve
from segtailor.api.training import evaluate, train_recipe
from segtailor.core.sampling import sample
from segtailor.core.space import SPACES, Architecture, family_of
from segtailor.costs import Macs
from segtailor.data.locate import locate
from segtailor.nets.bundle import load_bundle
from segtailor.recipes.candidates import ready_networks
from segtailor.recipes.training import TrainRecipe
from segtailor.spaces import baselines as handmade
from segtailor.tailoring.context import Context
from segtailor.tailoring.searches import search_recipe
from segtailor.tailoring.speed import step_seconds

LARGER, LARGEST = 1.5, 12.0  # multiply-accumulates of a teacher, in those of its student
WANTED = 4.0
DRAWN = 64  # random networks among which a teacher is looked for where none is published
FEWEST = 2  # steps of any training
LESSON = 150  # steps below which a teacher knows less than its student will, and only holds it up
SHORT = 400  # steps below which an average over many of them would still hold the beginning


def teacher(context: Context) -> dict[str, Any]:
    """Train a larger network of the same family, to learn from."""
    found = larger(context)
    if found is None:
        return {"network": None, "model": None, "reason": "the family has no network of a fitting size"}
    name, arch = found
    job = Lesson(stage="teacher", folder="teacher", model=arch, planned=context.recipe.effort.teacher_steps)
    recipe = _recipe(context, job)
    steps = recipe.fit.steps or 0
    if context.seconds("teacher") is not None and steps < LESSON and not context.begun("teacher"):
        reason = f"{name} would learn for {steps} steps only in the time; that goes to its student"
        return {"network": None, "model": None, "reason": reason}
    return {"network": name, **_trained(context, job, recipe)}


def train(context: Context) -> dict[str, Any]:
    """Train the network that was found, with the teacher's help."""
    job = Lesson(
        stage="train",
        folder="train",
        model=resolve(context.outcomes["choose"]["architecture"]),
        planned=context.recipe.effort.train_steps,
        teacher=context.outcomes["teacher"]["model"],
    )
    return _trained(context, job, _recipe(context, job))


def baselines(context: Context) -> dict[str, Any]:
    """Train ready networks that keep the budget in the same way: is the search worth it?"""
    rows, chosen = [], ready(context)
    for name, latency in chosen:
        job = Lesson(
            stage="baselines",
            folder=f"baseline-{name}",
            model=resolve(name),
            planned=context.recipe.effort.baseline_steps,
            teacher=context.outcomes["teacher"]["model"],
            share=1 / len(chosen),
        )
        rows.append({"network": name, **latency, **_trained(context, job, _recipe(context, job))})
    return {"networks": rows}


def larger(context: Context) -> tuple[str, Architecture] | None:
    """Return a network of the same family with about four times the work, under a name.

    The teacher that was searched beside it comes first, then published networks, then random ones of the space.
    """
    crop, student = context.recipe.crop, resolve(context.outcomes["choose"]["architecture"])
    own = count(student, image=crop).macs
    for group in _relatives(context, family_of(student)):
        sizes = {name: count(arch, image=crop).macs / own for name, arch in group.items()}
        fitting = {name: ratio for name, ratio in sizes.items() if LARGER <= ratio <= LARGEST}
        if fitting:
            name = min(fitting, key=lambda name: abs(fitting[name] / WANTED - 1))
            return name, group[name]
    return None


def _relatives(context: Context, family: str) -> Iterator[dict[str, Architecture]]:
    """Yield networks of a family by name: the searched teacher, the published ones, random ones of the space."""
    searched = context.outcomes["search"].get("teacher")
    if searched is not None:
        yield {"searched teacher": resolve(searched)}
    yield {name: arch for name in architectures() if family_of(arch := resolve(name)) == family}
    space = search_recipe(context, pack=None).space.build(SPACES)
    rng = Random(context.recipe.request.seed)
    yield {f"drawn network {number}": sample(space, rng) for number in range(DRAWN)}


def ready(context: Context) -> list[tuple[str, dict[str, float]]]:
    """Return the ready networks that are worth training: within the budget as measured, the best expected first.

    At least one is hand-made where any keeps the budget.
    """
    recipe, wanted = context.recipe, context.recipe.effort.baselines
    if not wanted:
        return []
    classes = locate(recipe.data).task.outputs
    chosen = context.outcomes["choose"]
    most = (
        3
        * count(chosen["architecture"], image=recipe.image).macs
        * max(1.0, recipe.request.budget_ms / chosen["p95_ms"])
    )
    rows = [row.name for row in ready_networks(Macs(), most, image=recipe.image, classes=classes) if row.fits]
    found: list[tuple[str, dict[str, float]]] = []
    for group in (
        [name for name in rows if name in handmade()],
        [name for name in rows if name not in handmade()],
    ):
        found += _fitting(context, group, wanted - len(found) if found else max(1, wanted // 2))
    return found


def _fitting(context: Context, names: list[str], wanted: int) -> list[tuple[str, dict[str, float]]]:
    """Measure networks one by one until enough keep the budget, or half of the stage's time is gone."""
    found: list[tuple[str, dict[str, float]]] = []
    seconds, begin = context.seconds("baselines"), time.monotonic()
    for name in names[: 4 * wanted + 2]:
        late = seconds is not None and time.monotonic() - begin > seconds / 2
        if late or len(found) >= wanted:
            break
        (one,) = context.time([name])
        if one.p95_ms <= context.recipe.request.budget_ms:
            found.append((name, {"median_ms": one.median_ms, "p95_ms": one.p95_ms}))
    return found


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """One training of a stage: which network, in which folder, with how much of the stage's time."""

    stage: str
    folder: str
    model: Architecture
    planned: int
    teacher: str | None = None
    share: float = 1.0


def _recipe(context: Context, job: Lesson) -> TrainRecipe:
    """Describe a training that fits the time, if one was asked for: a probe of it tells how long its steps take."""
    recipe = _of_length(context, job, job.planned)
    seconds = context.seconds(job.stage)
    if seconds is None or context.begun(job.folder):
        return recipe
    begin = time.monotonic()
    step = step_seconds(recipe, context.around)
    left = job.share * seconds - (time.monotonic() - begin)
    return _of_length(context, job, max(FEWEST, round(left / step)))


def _of_length(context: Context, job: Lesson, steps: int) -> TrainRecipe:
    recipe = context.recipe
    changes = [
        f"fit.steps={steps}",
        f"fit.batch={recipe.batch}",
        "fit.optimiser=adamw",
        f"fit.lr={recipe.lr}",
        "fit.weight_decay=0.01",
        f"fit.ema={0.98 if steps < SHORT else 0.999}",
        f"fit.precision={recipe.precision}",
        f"fit.seed={recipe.request.seed}",
        "reparameterise=true",
    ]
    if job.teacher is not None:
        changes += [f'teacher="{job.teacher}"', "fit.distill.kind=kl"]
    return train_recipe(
        job.model, recipe.data, crop=recipe.crop, changes=changes, surroundings=context.around
    )


def _trained(context: Context, job: Lesson, recipe: TrainRecipe) -> dict[str, Any]:
    """Train in a folder of its own, and score."""
    found = context.carry_out(recipe, job.folder)
    model = str(found["model"])
    scores = evaluate(model, context.recipe.data, split="val", surroundings=context.around)
    return {
        "run": str(context.run_folder(job.folder)),
        "model": model,
        "steps": found["steps"],
        "miou": scores["miou"],
        "params": count(load_bundle(Path(model)).architecture).params,
    }

"""The stages that train: a larger sibling as teacher, the network found, and ready networks beside it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

from segtailor.core.registry import SPACES
from segtailor.core.space import Architecture, family_of
from segtailor.core.variation import sample
from segtailor.data.cache import open_pixels
from segtailor.data.locate import locate
from segtailor.nets.bundle import load_bundle
from segtailor.recipes.train import TrainRecipe, train_recipe
from segtailor.spaces.networks import count, resolve
from segtailor.spaces.published import architectures
from segtailor.tailoring.context import OWN, Context
from segtailor.tailoring.pacing import (
    FEWEST,
    LATEST,
    LEAST_STEPS,
    OVERTIME_SHARE,
    TRAINING_SHARE,
    Length,
    Rival,
    closing_seconds,
    common_length,
    lesson_seconds,
)
from segtailor.tailoring.searches import search_recipe
from segtailor.tailoring.speed import step_seconds
from segtailor.verbs.eval import evaluate

LARGER, LARGEST = 1.5, 12.0  # multiply-accumulates of a teacher, in those of its student
WANTED = 4.0
DRAWN = 64  # random networks among which a teacher is looked for where none is published
LESSON = 150  # steps below which a teacher knows less than its student will, and only holds it up
LEAST_SECONDS = 1.0  # of a training whose time is over before it begins
SHORT = 400  # steps below which an average over many of them would still hold the beginning


def teacher(context: Context) -> dict[str, Any]:
    """Train a larger network of the same family, to learn from."""
    found = larger(context)
    if found is None:
        return {"network": None, "model": None, "reason": "the family has no network of a fitting size"}
    name, arch = found
    job, steps = Lesson(folder="teacher", model=arch), context.recipe.effort.teacher_steps
    seconds = context.seconds("teacher")
    if seconds is not None and not context.begun("teacher"):
        begin = time.monotonic()
        step = step_seconds(_of_length(context, job, steps), context.around)
        steps = Rival(step=step).steps(seconds - (time.monotonic() - begin))
        if steps < LESSON:
            reason = f"{name} would learn for {steps} steps only in the time; that goes to its student"
            return {"network": None, "model": None, "reason": reason}
        seconds -= time.monotonic() - begin
    return {"network": name, **_trained(context, job, _of_length(context, job, steps, seconds=seconds))}


def lengths(context: Context) -> dict[str, Any]:
    """Decide, once, for how many steps the winner and which ready networks are trained: each for as many.

    Where a time was asked for, a probe of each training tells what its steps cost.
    """
    found = context.outcomes["ready"]["networks"]
    names = [row["network"] for row in found]
    if context.left is None:
        return {"steps": context.recipe.effort.train_steps, "networks": names}
    winner = _rival(context, _winner(context), context.outcomes["choose"])
    others = [_rival(context, _ready(context, row["network"]), row) for row in found]
    making = mean(row["making_seconds"] for row in (context.outcomes["choose"], *found))  # any may win
    left = (context.remaining() or 0.0) - closing_seconds(making)
    length = common_length(winner, others, seconds=left)
    if length.steps < LEAST_STEPS:  # better one network that has learned something than two that have not
        length = common_length(winner, [], seconds=left)
    decided = {
        "networks": names[: length.ready],
        "making_seconds": making,
        "costs_seconds": [one._asdict() for one in (winner, *others)],
    }
    if length.steps >= LEAST_STEPS:
        return {
            **decided,
            "steps": length.steps,
            "seconds": _share(winner, others[: length.ready], length, left),
        }
    return {**decided, "networks": [], **_overtime(context, winner, late=winner.seconds(LEAST_STEPS) - left)}


def _share(winner: Rival, others: Sequence[Rival], length: Length, left: float) -> float:
    """Return the winner's part of the time for all trainings, less what is not for its steps."""
    everyone = winner.seconds(length.steps) + sum(one.seconds(length.steps) for one in others)
    return left * winner.seconds(length.steps) / everyone - winner.rest


def _overtime(context: Context, winner: Rival, *, late: float) -> dict[str, Any]:
    """Train for the fewest steps that make sense although they end late; where that is far too late, stop."""
    asked = context.recipe.request.seconds or 0.0
    steps = f"{LEAST_STEPS} steps of training, the fewest that are worth anything,"
    if late <= OVERTIME_SHARE * asked:
        context.tell(f"{steps} end about {late / 60:.1f} minutes after the time asked for: it is extended.")
        return {"steps": LEAST_STEPS, "seconds": winner.seconds(LEAST_STEPS)}
    needed = (2 * winner.seconds(LEAST_STEPS) + context.recipe.effort.closing_seconds) / TRAINING_SHARE
    return {
        "steps": 0,
        "seconds": 0.0,
        "stop": f"Not enough time: {steps} take {winner.seconds(LEAST_STEPS) / 60:.0f} minutes on this machine "
        f"as it is now. Give --time {math.ceil(needed / 60)}m, or stop other programs; nothing was exported.",
    }


def train(context: Context) -> dict[str, Any]:
    """Train the network that was found, with the teacher's help."""
    job, decided = _winner(context), context.outcomes["lengths"]
    recipe = _of_length(context, job, decided["steps"], seconds=decided.get("seconds"), least=LEAST_STEPS)
    return {"network": context.outcomes["choose"].get("network", OWN), **_trained(context, job, recipe)}


def baselines(context: Context) -> dict[str, Any]:
    """Train ready networks in the same way and for as many steps: is the search worth it?

    Where less time is left than was thought, all but the first are left out; that one is shortened only if it must be,
    which the verdict tells.
    """
    rows: list[dict[str, Any]] = []
    names, wanted = context.outcomes["lengths"]["networks"], context.outcomes["train"]["steps"]
    for number, name in enumerate(names):
        job = _ready(context, name)
        steps = wanted if context.begun(job.folder) else min(wanted, _affordable(context, number))
        if number and steps < wanted:
            break
        seconds = _training_seconds(context, number)
        rows.append(
            {"network": name, **_trained(context, job, _of_length(context, job, steps, seconds=seconds))}
        )
    return {"networks": rows, "left_out": names[len(rows) :]}


def _affordable(context: Context, number: int) -> int:
    """Return how many steps of a ready network end early enough."""
    decided, seconds = context.outcomes["lengths"], _training_seconds(context, number)
    if seconds is None:
        return int(decided["steps"])
    return max(FEWEST, int(seconds / decided["costs_seconds"][1 + number]["step"]))


def _training_seconds(context: Context, number: int) -> float | None:
    """Return how long the steps of a ready network may take."""
    remaining, asked = context.remaining(), context.recipe.request.seconds
    decided = context.outcomes["lengths"]
    if remaining is None or asked is None:
        return None
    closing = closing_seconds(decided["making_seconds"], untimed=1 + number)
    rest = float(decided["costs_seconds"][1 + number]["rest"])
    return max(remaining + (LATEST - 1) * asked - closing - rest, LEAST_SECONDS)


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


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """One training: which network, in which folder, taught by whom."""

    folder: str
    model: Architecture
    teacher: str | None = None


def _winner(context: Context) -> Lesson:
    arch = resolve(context.outcomes["choose"]["architecture"])
    return Lesson(folder="train", model=arch, teacher=context.outcomes["teacher"]["model"])


def _ready(context: Context, name: str) -> Lesson:
    return Lesson(
        folder=f"baseline-{name}", model=resolve(name), teacher=context.outcomes["teacher"]["model"]
    )


def _rival(context: Context, job: Lesson, measured: Mapping[str, Any]) -> Rival:
    """Probe a training."""
    recipe, around = context.recipe, context.around
    step = step_seconds(_of_length(context, job, recipe.effort.train_steps), around)
    pictures = len(open_pixels(locate(recipe.data), "val", around.cache))
    batches = pictures * math.prod(recipe.image) / (recipe.batch * math.prod(recipe.crop))
    return Rival(step=step, rest=lesson_seconds(measured["making_seconds"], step=step, batches=batches))


def _of_length(
    context: Context, job: Lesson, steps: int, *, seconds: float | None = None, least: int = 1
) -> TrainRecipe:
    """Describe a training of so many steps; fewer, but not below `least`, where they take longer than `seconds`."""
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
    if seconds is not None:
        changes += [f"fit.seconds={max(seconds, LEAST_SECONDS):.1f}", f"fit.least_steps={least}"]
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

"""The stages that train: a larger sibling as teacher, the network found, and ready networks beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from segtailor.api.networks import architectures, count, resolve
from segtailor.api.training import evaluate, train_recipe
from segtailor.core.space import family_of
from segtailor.costs import Macs
from segtailor.data.locate import locate
from segtailor.nets.bundle import load_bundle
from segtailor.recipes.candidates import ready_networks
from segtailor.recipes.training import TrainRecipe
from segtailor.spaces import baselines as handmade
from segtailor.tailoring.context import Context

LARGER, LARGEST = 1.5, 12.0  # multiply-accumulates of a teacher, in those of its student
WANTED = 4.0
SHORT = 400  # steps below which an average over many of them would still hold the beginning


def teacher(context: Context) -> dict[str, Any]:
    """Train a larger published network of the same family, to learn from."""
    name = sibling(context.outcomes["choose"]["architecture"], image=context.recipe.crop)
    if name is None:
        return {
            "network": None,
            "model": None,
            "reason": "the family has no published network of a fitting size",
        }
    recipe = _recipe(context, name, steps=context.recipe.effort.teacher_steps, teacher=None)
    return {"network": name, **_trained(context, recipe, "teacher")}


def train(context: Context) -> dict[str, Any]:
    """Train the network that was found, with the teacher's help."""
    recipe = _recipe(
        context,
        context.outcomes["choose"]["architecture"],
        steps=context.recipe.effort.train_steps,
        teacher=context.outcomes["teacher"]["model"],
    )
    return _trained(context, recipe, "train")


def baselines(context: Context) -> dict[str, Any]:
    """Train ready networks that keep the budget in the same way: is the search worth it?"""
    rows = []
    for name, latency in ready(context):
        recipe = _recipe(
            context,
            name,
            steps=context.recipe.effort.baseline_steps,
            teacher=context.outcomes["teacher"]["model"],
        )
        found = _trained(context, recipe, f"baseline-{name}")
        rows.append({"network": name, **latency, **found})
    return {"networks": rows}


def sibling(architecture: str, *, image: tuple[int, int]) -> str | None:
    """Return the published network of the same family that is nearest to four times the work, if any fits."""
    own = count(architecture, image=image).macs
    family = family_of(resolve(architecture))
    sizes = {
        name: count(name, image=image).macs / own
        for name in architectures()
        if family_of(resolve(name)) == family
    }
    fitting = {name: ratio for name, ratio in sizes.items() if LARGER <= ratio <= LARGEST}
    return min(fitting, key=lambda name: abs(fitting[name] / WANTED - 1)) if fitting else None


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
    """Measure networks one by one until enough keep the budget."""
    found: list[tuple[str, dict[str, float]]] = []
    for name in names[: 4 * wanted + 2]:
        if len(found) >= wanted:
            break
        (one,) = context.time([name])
        if one.p95_ms <= context.recipe.request.budget_ms:
            found.append((name, {"median_ms": one.median_ms, "p95_ms": one.p95_ms}))
    return found


def _recipe(context: Context, model: str, *, steps: int, teacher: str | None) -> TrainRecipe:
    recipe, total = context.recipe, context.paced(steps)
    changes = [
        f"fit.steps={total}",
        f"fit.batch={recipe.batch}",
        "fit.optimiser=adamw",
        f"fit.lr={recipe.lr}",
        "fit.weight_decay=0.01",
        f"fit.ema={0.98 if total < SHORT else 0.999}",
        f"fit.precision={recipe.precision}",
        f"fit.seed={recipe.request.seed}",
        "reparameterise=true",
    ]
    if teacher is not None:
        changes += [f'teacher="{teacher}"', "fit.distill.kind=kl"]
    return train_recipe(model, recipe.data, crop=recipe.crop, changes=changes, surroundings=context.around)


def _trained(context: Context, recipe: TrainRecipe, name: str) -> dict[str, Any]:
    """Train in a folder of its own, and score."""
    found = context.carry_out(recipe, name)
    model = str(found["model"])
    scores = evaluate(model, context.recipe.data, split="val", surroundings=context.around)
    return {
        "run": str(context.run_folder(name)),
        "model": model,
        "steps": found["steps"],
        "miou": scores["miou"],
        "params": count(load_bundle(Path(model)).architecture).params,
    }

"""The search of a tailoring: a published system, with effort, prices and budget set for this data and target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from segtailor.recipes.search import SearchRecipe
from segtailor.tailoring.choosing import DIRECTIONS, expands
from segtailor.tailoring.context import Context
from segtailor.tailoring.pacing import CHOOSE_SHARE, READY_SHARE
from segtailor.verbs import search
from segtailor.verbs.search import SearchChoices

STEPS_PER_CHOICE = 10  # of a supernet, for each network that is drawn from it in the end and judged
LEAST_SECONDS = 20.0  # of a search, however late it is
SLOWEST = 3.0  # times its share of the search, that a candidate's training may take
LAST_STAGE = 4  # steps of the first of two stages (the decoder alone) for one of the second (everything)


def search_recipe(context: Context, *, pack: Path | None, priced: bool = False) -> SearchRecipe:
    """Describe the search; without a price on networks it is only asked for its space."""
    recipe, around = context.recipe, context.around
    base = search.search_recipe(recipe.system, recipe.data, surroundings=around)
    if by_gradients(base):
        choices, changes = SearchChoices(seed=recipe.request.seed), _supernet(context, base)
    else:
        choices, changes = _trials(context, base), _judging(context, base)
        if "evolution" in (base.strategy.kind, choices.strategy):
            changes += _breeding(context)
    if priced:
        limit = recipe.search_limit_macs if pack is None else recipe.search_limit_ms
        choices = replace(choices, budget=f"{limit:.0f}" if pack is None else f"{limit}ms")
        changes += ["cost.kind=macs"] if pack is None else []
        if base.objective is not None and "limit" in base.objective.settings:
            changes.append(f"objective.settings.limit={limit}")
        changes += _deadlines(context, base)
    if priced and pack is not None:
        choices = replace(choices, pack=pack, target=recipe.request.target)
    return search.search_recipe(
        recipe.system, recipe.data, choices, image=recipe.image, changes=changes, surroundings=around
    )


def by_gradients(recipe: SearchRecipe) -> bool:
    """Tell whether a search trains one supernet instead of many candidates."""
    return recipe.strategy.kind == "gradient"


def _supernet(context: Context, base: SearchRecipe) -> list[str]:
    """Return what sets the length of a search by gradients; weights alone are trained before it in proportion."""
    settings, steps = base.strategy.settings, context.paced(context.recipe.effort.supernet_steps)
    changes = [
        f"strategy.settings.fit.steps={steps}",
        f"strategy.settings.fit.precision={context.recipe.precision}",
        f"strategy.settings.choice.samples={min(settings['choice']['samples'], steps // STEPS_PER_CHOICE)}",
    ]
    if settings["pretraining"] is not None:
        share = settings["pretraining"]["fit"]["steps"] / settings["fit"]["steps"]
        changes.append(f"strategy.settings.pretraining.fit.steps={max(1, round(share * steps))}")
    return changes


def _judging(context: Context, base: SearchRecipe) -> list[str]:
    """Return how long and on what each candidate is trained, in the way of the recipe's evaluator."""
    recipe = context.recipe
    steps = context.paced(recipe.effort.candidate_steps)
    if base.evaluator == "staged":
        return [
            f"staged.stage1.steps={steps}",
            f"staged.stage2.steps={max(1, steps // LAST_STAGE)}",
            f"staged.stage2.batch={recipe.batch}",
            f"staged.stage2.precision={recipe.precision}",
        ]
    return [
        f"training.fit.steps={steps}",
        f"training.fit.batch={recipe.batch}",
        f"training.fit.lr={recipe.lr}",
        f"training.fit.precision={recipe.precision}",
        f"training.augment.crop=[{recipe.crop[0]},{recipe.crop[1]}]",
    ]


def _deadlines(context: Context, base: SearchRecipe) -> list[str]:
    """Return when the search ends at the latest, and how long one candidate may take of it."""
    left = context.before_training(kept=CHOOSE_SHARE + READY_SHARE)
    if left is None:
        return []
    seconds = round(max(left, LEAST_SECONDS), 1)
    if by_gradients(base):
        return [f"strategy.settings.fit.seconds={seconds}"]
    recipe = context.recipe
    each = round(SLOWEST * seconds * recipe.workers / recipe.effort.candidates, 1)
    training = "staged.stage2" if base.evaluator == "staged" else "training.fit"
    return [f"seconds={seconds}", f"{training}.seconds={each}"]


def _breeding(context: Context) -> list[str]:
    """Return a population that leaves most of the candidates to be bred."""
    candidates = context.recipe.effort.candidates
    return [
        f"strategy.settings.population={min(16, max(4, candidates // 3))}",
        f"strategy.settings.children={max(2, candidates // 8)}",
    ]


def _trials(context: Context, base: SearchRecipe) -> SearchChoices:
    """Expand step by step where there are enough candidates for it, evolve otherwise."""
    recipe, effort = context.recipe, context.recipe.effort
    usual = SearchChoices(workers=recipe.workers if recipe.workers > 1 else None, seed=recipe.request.seed)
    if base.strategy.kind != "expansion":
        return replace(usual, trials=effort.candidates)
    if expands(effort):
        return replace(usual, steps=effort.candidates // DIRECTIONS)
    return replace(usual, strategy="evolution", trials=effort.candidates)

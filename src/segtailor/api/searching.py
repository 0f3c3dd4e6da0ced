"""Search: the functions behind the verb."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import segtailor.recipes.auxcells
import segtailor.recipes.auxcells_studies
import segtailor.recipes.dilated
import segtailor.recipes.gradient_systems
import segtailor.recipes.lpsnet
import segtailor.spaces  # noqa: F401 - registers the families
from segtailor.api.training import Surroundings, usual_crop
from segtailor.core.codec import Json
from segtailor.core.errors import UserError, unknown
from segtailor.core.space import SPACES
from segtailor.core.strategy import STRATEGIES
from segtailor.data.cache import open_pixels
from segtailor.data.locate import locate
from segtailor.recipes.choices import SearchChoices
from segtailor.recipes.gradient_row import ADAPT
from segtailor.recipes.overrides import overridden
from segtailor.recipes.parts import CostSpec, ExecutorSpec, Part, parse_limit, part
from segtailor.recipes.recipe import Place, parse_recipe, recipe_document
from segtailor.recipes.searching import Searching, SearchRecipe
from segtailor.recipes.systems import SYSTEMS, Occasion
from segtailor.runs import Layout, execute
from segtailor.strategies.evaluators.shared import SharedEvaluator
from segtailor.strategies.halves import FIT, HalvedTrain

OWN_SETTINGS = ("gradient", "study", "contest", "ablation")  # strategies that only a recipe can describe


def search_recipe(
    name: str,
    data: str,
    choices: SearchChoices | None = None,
    *,
    image: tuple[int, int] | None = None,
    changes: Iterable[str] = (),
    surroundings: Surroundings | None = None,
) -> SearchRecipe:
    """Write the recipe of a published system for a dataset, with the choices made; `changes` are `field=value`.

    `image` is the size that networks are priced at, by default the recipe's or the images' own.
    """
    chosen, around = choices or SearchChoices(), surroundings or Surroundings()
    system = SYSTEMS.get(name)
    known = [name for name in STRATEGIES.names() if name not in OWN_SETTINGS]
    if chosen.strategy is not None and chosen.strategy not in known:
        raise unknown("strategy", chosen.strategy, known)
    pixels = open_pixels(HalvedTrain(dataset=locate(data)), FIT, around.cache)
    height, width = pixels.sizes.max(axis=0).tolist()
    recipe = system(chosen.scale, Occasion(data=data, size=(height, width), crop=usual_crop(pixels)))
    cost = _cost(chosen, recipe.cost)
    recipe = replace(
        recipe,
        image=image or recipe.image,
        cost=cost,
        limit=recipe.limit if chosen.budget is None else parse_limit(chosen.budget, cost),
        space=recipe.space if chosen.space is None else part(SPACES, chosen.space),
        strategy=_strategy(chosen, recipe.strategy),
        evaluator=chosen.evaluator or ("shared" if chosen.supernet else recipe.evaluator),
        shared=recipe.shared
        if chosen.supernet is None
        else SharedEvaluator(supernet=_saved(chosen.supernet)),
        executor=_executor(chosen, recipe.executor),
        seed=recipe.seed if chosen.seed is None else chosen.seed,
    )
    recipe = _in_flight(recipe, chosen.workers or 1)
    changed = parse_recipe(overridden(recipe_document(recipe), changes), what="recipe")
    return changed if isinstance(changed, SearchRecipe) else recipe


def search(
    recipe: SearchRecipe | str,
    out: str | Path,
    *,
    data: str | None = None,
    surroundings: Surroundings | None = None,
    **choices: Any,
) -> dict[str, Json]:
    """Search in the run directory `out`, or go on with what is there; what cannot work fails before it is made.

    `recipe` is a recipe, or the name of a published system with `data`, `image`, `changes` and the fields of
    `SearchChoices`.
    """
    around, folder = surroundings or Surroundings(), Path(out)
    if isinstance(recipe, str):
        recipe = _named(recipe, data, choices, around)
    place = Place(folder=folder, cache=around.cache, device=around.device)
    new = not Layout(folder).recipe.exists()

    def make() -> Searching:
        job = recipe.job(place)
        if new:
            job.preview()
        return job

    return execute(make, folder, recipe_document(recipe), display=around.display, policy=around.policy)


def preview(recipe: SearchRecipe, *, surroundings: Surroundings | None = None) -> dict[str, Json]:
    """Say what a search would begin with; nothing is trained, and nothing timed."""
    around = surroundings or Surroundings()
    job = recipe.job(Place(folder=Path(), cache=around.cache, device=around.device))
    if recipe.cost.measured:
        return {}
    first = job.preview()
    if not first:  # a search by gradients begins with all networks at once
        return {}
    return {"first": len(first), "cheapest": min(item.cost for item in first), "unit": recipe.cost.unit}


def _named(name: str, data: str | None, choices: dict[str, Any], around: Surroundings) -> SearchRecipe:
    if data is None:
        raise UserError(f"recipe '{name}' needs data; give for example data='synthetic'.")
    image, changes = choices.pop("image", None), choices.pop("changes", ())
    known = [item.name for item in fields(SearchChoices)]
    for choice in choices:
        if choice not in known:
            raise unknown("choice of a search", choice, [*known, "image", "changes"])
    chosen = SearchChoices(**choices)
    return search_recipe(name, data, chosen, image=image, changes=changes, surroundings=around)


def _cost(chosen: SearchChoices, cost: CostSpec) -> CostSpec:
    if chosen.target is None and chosen.pack is None:
        return cost
    pack = None if chosen.pack is None else str(chosen.pack)
    return CostSpec(kind="latency", target=chosen.target, pack=pack, force=chosen.force)


def _strategy(chosen: SearchChoices, strategy: Part) -> Part:
    kind = chosen.strategy or strategy.kind
    settings = dict(strategy.settings) if kind == strategy.kind else part(STRATEGIES, kind).settings
    for name in ("trials", "steps"):
        value = getattr(chosen, name)
        if value is None:
            continue
        if name not in settings:
            other = {"trials": "steps", "steps": "trials"}[name]
            remedy = f"it counts {other}: give --{other}" if other in settings else "its number is fixed"
            raise UserError(f"--{name}: strategy '{kind}' has no such setting; {remedy}.")
        settings[name] = value
    if kind == "gradient" and chosen.budget is not None:
        settings["cost"] = _towards_budget(settings["cost"])
    return Part(kind=kind, settings=settings)


def _towards_budget(cost: dict[str, Any]) -> dict[str, Any]:
    """Let the cost weight of a search by gradients move towards the budget, unless the recipe has its own way.

    A budget is for whole networks: what it counts must pay, or the rest shrinks for it (AutoRTNet's aggregation cell).
    """
    steered = cost["adapt"] > 0 or cost.get("window") is not None or cost["weight"] == 0
    return cost if steered else {**cost, "adapt": ADAPT, "whole": True}


def _saved(run: Path) -> str:
    """Return the folder of a run's supernet, or the folder itself; absolute, as workers may stand elsewhere."""
    inside = Layout(run).supernet
    return str((inside if inside.is_dir() else run).absolute())


def _in_flight(recipe: SearchRecipe, workers: int) -> SearchRecipe:
    """Let a controller ask for as many networks at a time as there are workers; those are then told the same."""
    settings = dict(recipe.strategy.settings)
    if recipe.strategy.kind == "controller":
        settings["batch"] = max(settings["batch"], workers)
    staged = recipe.staged
    if staged is not None and staged.early_stop is not None:
        stop = replace(staged.early_stop, every=max(staged.early_stop.every, workers))
        staged = replace(staged, early_stop=stop)
    return replace(recipe, strategy=replace(recipe.strategy, settings=settings), staged=staged)


def _executor(chosen: SearchChoices, executor: ExecutorSpec) -> ExecutorSpec:
    several = chosen.workers is not None and chosen.workers > 1
    implied = "ray" if chosen.address else "processes" if several and executor.kind == "serial" else None
    return replace(
        executor,
        kind=chosen.executor or implied or executor.kind,
        workers=executor.workers if chosen.workers is None else chosen.workers,
        address=chosen.address or executor.address,
    )

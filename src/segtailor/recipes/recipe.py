"""What a recipe is: a frozen value that a run directory keeps as `recipe.json`, and the job it stands for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar, runtime_checkable

from segtailor.core.codec import KIND, Json, from_json, to_json
from segtailor.core.errors import RunProblem, UserError
from segtailor.core.job import Job
from segtailor.core.registry import RECIPES
from segtailor.runs import Context, Layout, check_place, execute
from segtailor.training import distributed
from segtailor.training.device import pick_device

R = TypeVar("R", bound="Recipe")
OLD_ENCODER_WEIGHTS = {"package": "imagenet", "random": "none"}  # names of earlier versions -> starts


class Recipe(Protocol):
    """A frozen dataclass of settings; running it again is the reproduction."""

    def job(self, context: Context) -> Job:
        """Build the job, ready to start or to be loaded from a checkpoint."""


@runtime_checkable
class RunsItself(Protocol):
    """A recipe whose run is more than its job, e.g. a run of runs."""

    def carry_out(self, context: Context) -> dict[str, Json]:
        """Do what the recipe says in `context.folder`, or continue what is there."""


def recipe_document(recipe: Recipe) -> dict[str, Json]:
    """Return what `recipe.json` holds."""
    return {KIND: RECIPES.name_of(type(recipe)), **to_json(recipe)}


def parse_recipe(document: Any, *, what: str) -> Recipe:
    """Validate the content of a `recipe.json`."""
    if not isinstance(document, dict) or document.get(KIND) not in RECIPES:
        kind = document.get(KIND) if isinstance(document, dict) else None
        raise RunProblem(
            f"{what}: kind is {kind!r}; known: {', '.join(RECIPES.names())}. Is it a run directory?"
        )
    if has_old_form(document):
        raise RunProblem(
            f"{what} was written by an earlier version, whose unfinished searches and calibrations cannot be "
            "continued. Start it again in another folder."
        )
    body = with_start({key: value for key, value in document.items() if key != KIND})
    recipe: Recipe = from_json(RECIPES.get(document[KIND]), body, what=what, error=RunProblem)
    return recipe


def with_start(document: dict[str, Any]) -> dict[str, Any]:
    """Return a training of an earlier version, whose encoder's weights had a field of their own, with one start."""
    if isinstance(document.get("stages"), list):
        stages = [with_start(stage) if isinstance(stage, dict) else stage for stage in document["stages"]]
        return {**document, "stages": stages}
    if "encoder_weights" not in document:
        return document
    encoder = document["encoder_weights"]
    rest = {key: value for key, value in document.items() if key != "encoder_weights"}
    if encoder is None or rest.get("start") is not None:
        return rest
    return {**rest, "start": OLD_ENCODER_WEIGHTS.get(encoder, encoder)}


def has_old_form(document: Mapping[str, Any]) -> bool:
    """Recognise a search or calibration of before typed recipes: its space was a name with separate `settings`."""
    space, strategy = document.get("space"), document.get("strategy")
    if document.get(KIND) == "calibrate":
        return isinstance(space, str)
    return document.get(KIND) == "search" and isinstance(strategy, dict) and "settings" in strategy


def carry_out(
    recipe: Recipe, context: Context, *, check: Callable[[Any], object] | None = None
) -> dict[str, Json]:
    """Do what a recipe says in `context.folder`, or continue what is there; a finished run returns its result.

    Works alone or together with the processes that `torchrun` started. The job of a new run is built, and `check` is
    called with it, before its folder is made: a run that cannot begin leaves nothing behind.
    """
    device = pick_device(context.device)
    distributed.join(device)
    try:
        rank, _ = distributed.world()
        placed = replace(context, leader=rank == 0)
        new = not Layout(context.folder).recipe.exists()
        first = _first_job(recipe, placed, check) if new else None
        return execute(
            lambda: first or recipe.job(placed),
            context.folder,
            recipe_document(recipe),
            display=context.display,
            policy=context.policy,
            leader=placed.leader,
            agree=lambda stop: distributed.any_process(stop, device),
        )
    finally:
        distributed.leave()


def _first_job(recipe: Recipe, context: Context, check: Callable[[Any], object] | None) -> Job:
    """Build the job of a new run; a folder that it cannot use is refused before that takes its time."""
    if context.leader:
        check_place(context.folder)
    job = recipe.job(context)
    if check is not None:
        check(job)
    return job


def with_settings(recipe: R, changes: Iterable[str]) -> R:
    """Return a recipe with fields set by text as typed on a command line, e.g. `fit.lr=0.02`; types are checked."""
    texts = list(changes)
    if not texts:
        return recipe
    body = set_fields(to_json(recipe), texts)
    return from_json(type(recipe), body, what="recipe")


def set_fields(document: Mapping[str, Any], changes: Iterable[str]) -> dict[str, Any]:
    """Return a copy of plain JSON data with dotted fields set; values are JSON, or else text."""
    result: dict[str, Any] = json.loads(json.dumps(document))
    begun: list[dict[str, Any]] = []  # objects that were null: only their parser knows which fields they have
    for change in changes:
        path, sign, text = change.partition("=")
        keys = path.split(".")
        if not sign or not all(keys):
            raise UserError(f"'--set {change}' is not FIELD=VALUE; write for example --set fit.lr=0.02.")
        parent = result
        for key in keys[:-1]:
            if key not in parent:
                raise UserError(
                    f"'--set {change}': there is no '{key}'; fields here are {', '.join(parent)}."
                )
            if parent[key] is None:
                parent[key] = {}
                begun.append(parent[key])
            parent = parent[key]
            if not isinstance(parent, dict):
                raise UserError(f"'--set {change}': '{key}' is a single value and has no fields.")
        if parent and keys[-1] not in parent and not any(parent is other for other in begun):
            raise UserError(
                f"'--set {change}': there is no '{keys[-1]}'; fields here are {', '.join(parent)}."
            )
        parent[keys[-1]] = _json_or_text(text)
    return result


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text

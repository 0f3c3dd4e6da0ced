"""What a recipe is: plain data that a run directory keeps, and the job it stands for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from segtailor.core.codec import Json, from_json, to_json
from segtailor.core.errors import RunProblem
from segtailor.core.job import Job
from segtailor.core.registry import Registry


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a recipe is carried out: what may differ between two machines without changing the result's meaning.

    A recipe that was read from a file is not `trusted`: it may neither import code by name nor contact anybody.
    """

    folder: Path
    cache: Path
    device: str | None = None
    leader: bool = True
    trusted: bool = True


class Recipe(Protocol):
    """A frozen dataclass of settings; running it again is the reproduction."""

    def job(self, place: Place) -> Job:
        """Build the job, ready to start or to be loaded from a checkpoint."""


RECIPES: Registry[type[Recipe]] = Registry("recipe")


def recipe_document(recipe: Recipe) -> dict[str, Json]:
    """Return what `recipe.json` holds."""
    return {"kind": RECIPES.name_of(type(recipe)), **to_json(recipe)}


def parse_recipe(document: Any, *, what: str) -> Recipe:
    """Validate the content of a `recipe.json`."""
    if not isinstance(document, dict) or document.get("kind") not in RECIPES:
        kind = document.get("kind") if isinstance(document, dict) else None
        raise RunProblem(
            f"{what}: kind is {kind!r}; known: {', '.join(RECIPES.names())}. Is it a run directory?"
        )
    body = {key: value for key, value in document.items() if key != "kind"}
    recipe: Recipe = from_json(RECIPES.get(document["kind"]), body, what=what, error=RunProblem)
    return recipe

"""Published systems on tiny synthetic images: recipes whose trials take a step or two."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from segtailor.core.registry import SYSTEMS
from segtailor.recipes.search import SearchRecipe
from segtailor.runs import Context, Policy
from segtailor.spaces.decoder_cell import DecoderCell
from segtailor.strategies import Controller
from segtailor.strategies.evaluators.staged import StagedEvaluator
from segtailor.systems.system import Scale, Size

DATA = "synthetic:size=32x64,train=10,val=2"


def system_on(
    name: str, data: str = DATA, *, size: Size = (32, 64), crop: Size | None = None, scale: Scale = "small"
) -> SearchRecipe:
    """Return the recipe of a published system for images of one size."""
    recipe: SearchRecipe = SYSTEMS.get(name).on(data, scale=scale, size=size, crop=crop or size)
    return recipe


def tiny_auxcells(*, encoder: str = "tiny", trials: int = 4, **evaluator: Any) -> SearchRecipe:
    """Return a search of auxiliary cells whose stages take a step or two; other arguments are of its evaluator."""
    recipe = system_on("auxcells")
    space, stages = recipe.space, recipe.evaluator
    assert isinstance(space, DecoderCell)
    assert isinstance(stages, StagedEvaluator)
    assert stages.stage2 is not None
    assert isinstance(recipe.strategy, Controller)
    return replace(
        recipe,
        space=replace(space, encoder=encoder, channels=4),
        strategy=replace(recipe.strategy, trials=trials, batch=2, hidden=8, layers=1),
        evaluator=replace(
            stages,
            images=4,
            stage1=replace(stages.stage1, epochs=1, batch=2),
            stage2=replace(stages.stage2, steps=1, batch=2),
            **evaluator,
        ),
    )


def context_in(folder: Path) -> Context:
    """Return a context that keeps its cache in a folder and computes on the CPU; its run directory is `run`."""
    return Context(
        folder=folder / "run", cache=folder / "cache", device="cpu", policy=Policy(tensorboard=False)
    )

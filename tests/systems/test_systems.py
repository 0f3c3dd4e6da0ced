"""The published systems as values: complete, written to files and read again, and fitted to data as promised."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import get_args

import pytest

from segtailor.core.registry import SYSTEMS
from segtailor.recipes.recipe import parse_recipe, recipe_document
from segtailor.recipes.search import SearchRecipe
from segtailor.strategies.evaluators.staged import StagedEvaluator
from segtailor.strategies.gradient_settings import Gradient
from segtailor.systems.system import PAPER_DATA, SMALL_DATA, SMALL_IMAGE, Scale, Size, System
from tests.systems.tiny import system_on

EVERY = pytest.mark.parametrize("name", SYSTEMS.names())
SCALES: tuple[Scale, ...] = get_args(Scale)


def recipes(name: str) -> dict[Scale, SearchRecipe]:
    system: System = SYSTEMS.get(name)
    return {"paper": system.paper, "small": system.small}


@EVERY
@pytest.mark.parametrize("scale", SCALES)
def test_a_recipe_survives_its_file(name: str, scale: Scale) -> None:
    for recipe in (recipes(name)[scale], system_on(name, scale=scale)):
        document = json.loads(json.dumps(recipe_document(recipe)))
        again = parse_recipe(document, what="recipe")
        assert again == recipe
        assert recipe_document(again) == recipe_document(recipe)


@EVERY
def test_a_system_is_named_as_its_recipes_and_says_what_it_does(name: str) -> None:
    system: System = SYSTEMS.get(name)
    assert system.paper.name == system.small.name == name
    assert system.summary.endswith(").")
    assert (system.small.data, system.small.image) == (SMALL_DATA, SMALL_IMAGE)
    assert name in ("auxcells",) or system.paper.data == PAPER_DATA


@EVERY
def test_published_settings_stay_as_published_whatever_the_data(name: str) -> None:
    system: System = SYSTEMS.get(name)
    found = system_on(name, "camvid:PATH", size=(90, 120), scale="paper")
    if system.fit_paper:  # ours: nothing is published
        assert (found.image, max(crops(found))) == ((90, 120), (90, 120))
    else:
        published = system.paper_on.get("camvid", system.paper)
        assert found == replace(published, data="camvid:PATH")


@EVERY
@pytest.mark.parametrize("size", [(32, 64), (75, 130), (64, 128), (200, 300), (40, 72)])
def test_small_searches_price_whole_images_and_train_on_crops_that_fit(name: str, size: Size) -> None:
    system: System = SYSTEMS.get(name)
    found = system_on(name, size=size)
    assert found.image == size
    for crop, largest in zip(crops(found), crops(system.small), strict=True):
        for side, most, length in zip(crop, largest, size, strict=True):
            assert side == min(most, length) // system.crop_multiple * system.crop_multiple


def crops(recipe: SearchRecipe) -> list[Size]:
    """Return every training crop of a recipe."""
    result = []
    if isinstance(recipe.strategy, Gradient):
        assert recipe.strategy.augment is not None
        result.append(recipe.strategy.augment.crop)
        before = recipe.strategy.pretraining
        if before is not None and before.augment is not None:
            result.append(before.augment.crop)
    evaluator = recipe.evaluator
    if isinstance(evaluator, StagedEvaluator):
        result += [evaluator.features.crop, evaluator.judge]
    return [*result, getattr(evaluator, "augment").crop]  # noqa: B009 - every evaluator of a system has one

"""The gradient systems as recipes of the search verb."""

import json
from pathlib import Path

import pytest

import segtailor.recipes.gradient_systems  # noqa: F401 - registers the systems
from segtailor.api.searching import search_recipe
from segtailor.api.training import Surroundings
from segtailor.core.space import SPACES
from segtailor.core.strategy import STRATEGIES
from segtailor.recipes.autortnet import ROBUSTNESS
from segtailor.recipes.choices import SearchChoices
from segtailor.recipes.recipe import parse_recipe, recipe_document
from segtailor.recipes.systems import SYSTEMS, Occasion
from segtailor.search.gradient_settings import Gradient

OCCASION = Occasion(data="synthetic:size=96x160,train=8,val=2", size=(96, 160), crop=(96, 160))


@pytest.mark.parametrize("name", ["squeezenas", "autortnet"])
@pytest.mark.parametrize("scale", ["small", "paper"])
def test_a_system_is_a_complete_recipe_that_survives_its_file(name: str, scale: str) -> None:
    recipe = SYSTEMS.get(name)(scale, OCCASION)  # type: ignore[arg-type]
    again = parse_recipe(json.loads(json.dumps(recipe_document(recipe))), what="recipe")
    assert again == recipe
    assert isinstance(recipe.strategy.build(STRATEGIES), Gradient)
    assert recipe.space.build(SPACES).decisions


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_table_4_is_a_recipe_for_each_of_its_rows(scale: str) -> None:
    names = [name for name in SYSTEMS.names() if name.startswith("autortnet-robustness-")]
    recipes = [SYSTEMS.get(name)(scale, OCCASION) for name in names]  # type: ignore[arg-type]
    starts = [(tuple(recipe.space.settings["depths"]), recipe.seed) for recipe in recipes]
    assert len(set(starts)) == len(ROBUSTNESS) == len(recipes)


def test_a_budget_lets_the_cost_weight_move(tmp_path: Path) -> None:
    around = Surroundings(cache=tmp_path)
    free, bound = (
        search_recipe("squeezenas", OCCASION.data, SearchChoices(budget=budget), surroundings=around)
        for budget in (None, "5M")
    )
    assert free.strategy.settings["cost"]["adapt"] == 0
    assert bound.strategy.settings["cost"]["adapt"] > 0
    assert bound.limit == 5e6


def test_a_small_search_prices_the_images_and_trains_on_small_crops() -> None:
    recipe = SYSTEMS.get("squeezenas")("small", OCCASION)
    assert recipe.image == (96, 160)
    assert recipe.strategy.settings["augment"]["crop"] == [64, 128]

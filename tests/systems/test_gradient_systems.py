"""The gradient systems as recipes of the search verb."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import segtailor.recipes.gradient_systems  # noqa: F401 - registers the systems
from segtailor.recipes.systems import Occasion

from segtailor.core.plan import Shape
from segtailor.core.registry import SPACES, STRATEGIES, SYSTEMS
from segtailor.costs import Use
from segtailor.recipes.recipe import parse_recipe, recipe_document
from segtailor.runs import Context
from segtailor.spaces import published
from segtailor.strategies.gradient_settings import Gradient
from segtailor.systems.autortnet import ROBUSTNESS
from segtailor.systems.fasterseg import ablation, latency_terms
from segtailor.verbs.search import SearchChoices, search_recipe

OCCASION = Occasion(data="synthetic:size=96x160,train=8,val=2", size=(96, 160), crop=(96, 160))


@pytest.mark.parametrize("name", ["squeezenas", "autortnet", "fasterseg"])
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
    around = Context(cache=tmp_path)
    free, bound = (
        search_recipe("squeezenas", OCCASION.data, SearchChoices(budget=budget), context=around)
        for budget in (None, "5M")
    )
    assert free.strategy.settings["cost"]["adapt"] == 0
    assert bound.strategy.settings["cost"]["adapt"] > 0
    assert bound.strategy.settings["cost"]["whole"]  # what the budget counts must pay
    assert bound.limit == 5e6


def test_a_small_search_prices_the_images_and_trains_on_small_crops() -> None:
    recipe = SYSTEMS.get("squeezenas")("small", OCCASION)
    assert recipe.image == (96, 160)
    assert recipe.strategy.settings["augment"]["crop"] == [64, 128]


def test_fasterseg_steers_by_the_published_table_at_paper_scale() -> None:
    recipe = SYSTEMS.get("fasterseg")("paper", OCCASION)
    assert recipe.cost.pack == "fasterseg-1080ti"
    assert recipe.limit == pytest.approx(1000 / 155)
    table = recipe.cost.build(Use(space="multi_resolution", image=(1024, 2048), classes=19, target=None))
    student = published("fasterseg-student")
    plan = SPACES.get("multi_resolution")().plan(student, Shape(3, 1024, 2048), 19)
    assert table.of(plan) == pytest.approx(5.701836, abs=1e-5)
    settings = recipe.strategy.build(STRATEGIES)
    assert isinstance(settings, Gradient)
    assert [row.widths for row in settings.turns] == ["own", "own", "most", "least"]
    assert settings.pretraining is not None
    assert (settings.pretraining.fit.batch, settings.fit.batch, settings.fit.lr) == (3, 2, 0.01)
    shares = {name: row.cost for name, row in settings.groups.items()}
    assert shares == {"op": 0.002, "path": 0.994, "width": 0.004}


def test_crops_of_fasterseg_are_multiples_of_32() -> None:
    odd = replace(OCCASION, size=(75, 130), crop=(75, 130))
    recipe = SYSTEMS.get("fasterseg")("small", odd)
    assert recipe.strategy.settings["augment"]["crop"] == [64, 128]
    assert recipe.image == (75, 130)


def test_the_studies_of_fasterseg_differ_in_what_they_study() -> None:
    terms = latency_terms()
    assert terms["plain"].strategy.cost.others == "current"
    assert len({row.cost for row in terms["plain"].strategy.groups.values()}) == 1
    rows = {name: row.space for name, row in ablation().items()}
    assert [len(space.ends) for space in rows.values()] == [1, 2, 2]  # type: ignore[attr-defined]
    assert [len(space.ratios) for space in rows.values()] == [1, 1, 3]  # type: ignore[attr-defined]

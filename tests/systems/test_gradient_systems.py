"""The gradient systems: paths, crops and costs as published, and how a budget steers them."""

from pathlib import Path

import pytest

from segtailor.core.plan import Shape
from segtailor.costs import Use
from segtailor.costs.latency import PackLatency
from segtailor.recipes.search import SearchRecipe
from segtailor.runs import Context
from segtailor.spaces import published
from segtailor.spaces.multi_resolution import MultiResolution
from segtailor.strategies.gradient_settings import Gradient
from segtailor.systems.system import Scale
from segtailor.verbs.search import SearchChoices, search_recipe
from tests.systems.tiny import system_on

DATA = "synthetic:size=96x160,train=8,val=2"


@pytest.mark.parametrize("name", ["squeezenas", "autortnet", "fasterseg"])
@pytest.mark.parametrize("scale", ["small", "paper"])
def test_gradient_systems_search_by_gradients(name: str, scale: Scale) -> None:
    recipe = system_on(name, DATA, size=(96, 160), scale=scale)
    assert isinstance(recipe.strategy, Gradient)
    assert recipe.space.decisions


def test_a_budget_lets_the_cost_weight_move(tmp_path: Path) -> None:
    context = Context(cache=tmp_path)
    free, bound = (
        search_recipe("squeezenas", DATA, SearchChoices(budget=budget), context=context)
        for budget in (None, "5M")
    )
    assert isinstance(free.strategy, Gradient)
    assert isinstance(bound.strategy, Gradient)
    assert free.strategy.cost.adapt == 0
    assert bound.strategy.cost.adapt > 0
    assert bound.strategy.cost.whole  # what the budget counts must pay
    assert bound.limit == 5e6


def test_a_small_search_prices_the_images_and_trains_on_small_crops() -> None:
    recipe = system_on("squeezenas", DATA, size=(96, 160))
    assert recipe.image == (96, 160)
    assert crop_of(recipe) == (64, 128)


def test_fasterseg_steers_by_the_published_table_at_paper_scale() -> None:
    recipe = system_on("fasterseg", DATA, size=(96, 160), scale="paper")
    assert isinstance(recipe.cost, PackLatency)
    assert recipe.cost.pack == "fasterseg-1080ti"
    assert recipe.limit == pytest.approx(1000 / 155)
    table = recipe.cost.open(Use(space="multi_resolution", image=(1024, 2048), classes=19, target=None))
    student = published("fasterseg-student")
    plan = MultiResolution().plan(student, Shape(3, 1024, 2048), 19)
    assert table.of(plan) == pytest.approx(5.701836, abs=1e-5)
    settings = recipe.strategy
    assert isinstance(settings, Gradient)
    assert [row.widths for row in settings.turns] == ["own", "own", "most", "least"]
    assert settings.pretraining is not None
    assert (settings.pretraining.fit.batch, settings.fit.batch, settings.fit.lr) == (3, 2, 0.01)
    shares = {name: row.cost for name, row in settings.groups.items()}
    assert shares == {"op": 0.002, "path": 0.994, "width": 0.004}


def test_crops_of_fasterseg_are_multiples_of_32() -> None:
    recipe = system_on("fasterseg", DATA, size=(75, 130))
    assert crop_of(recipe) == (64, 128)
    assert recipe.image == (75, 130)
    assert crop_of(system_on("fasterseg", DATA, size=(20, 40))) == (32, 32)


def crop_of(recipe: SearchRecipe) -> tuple[int, int]:
    assert isinstance(recipe.strategy, Gradient)
    assert recipe.strategy.augment is not None
    return recipe.strategy.augment.crop


@pytest.mark.parametrize("name", ["autortnet", "squeezenas"])
@pytest.mark.parametrize("scale", ["small", "paper"])
def test_joint_searches_train_on_all_images_but_a_small_share(name: str, scale: Scale) -> None:
    assert system_on(name, scale=scale).judging <= 0.2

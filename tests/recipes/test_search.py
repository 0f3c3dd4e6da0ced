"""Search recipes: complete plain data, the published settings, and refusals before any work."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from segtailor.recipes.parts import CostSpec, ExecutorSpec, Part
from segtailor.recipes.systems import Occasion

from segtailor.core.errors import UnknownName, Unsupported, UserError
from segtailor.core.plan import Shape
from segtailor.core.registry import SYSTEMS
from segtailor.core.space import parse_architecture, plan_of
from segtailor.costs.keys import key_of
from segtailor.costs.pack import Entry, Pack
from segtailor.data.synthetic import TASK
from segtailor.recipes.recipe import parse_recipe, recipe_document
from segtailor.recipes.search import SearchRecipe
from segtailor.runs import Context
from segtailor.spaces.scalable_path import ScalablePath
from segtailor.strategies import Processes, Ray, Serial
from segtailor.verbs.search import SearchChoices, parse_limit, search, search_recipe

DATA = "synthetic:size=64x128,train=8,val=2"
OCCASION = Occasion(data=DATA, size=(64, 128), crop=(64, 128))


def recipe(name: str = "lpsnet", scale: Any = "small") -> SearchRecipe:
    return SYSTEMS.get(name)(scale, OCCASION)


def place(tmp_path: Path) -> Context:
    return Context(folder=tmp_path / "run", cache=tmp_path / "cache", device="cpu")


@pytest.mark.parametrize("name", SYSTEMS.names())
@pytest.mark.parametrize("scale", ["small", "paper"])
def test_recipes_survive_json(name: str, scale: str) -> None:
    document = json.loads(json.dumps(recipe_document(recipe(name, scale))))
    assert parse_recipe(document, what="recipe") == recipe(name, scale)


def test_the_paper_scale_is_the_short_recipe_of_the_paper() -> None:
    found = recipe(scale="paper")
    fit, augment = found.training.fit, found.training.augment
    assert (fit.optimiser, fit.lr, fit.momentum, fit.weight_decay) == ("sgd", 0.01, 0.9, 5e-4)
    assert (fit.batch, fit.steps, fit.schedule.kind, fit.schedule.power) == (16, 90_000, "poly", 0.9)
    assert (augment.crop, augment.scale, augment.flip) == ((768, 768), (0.5, 2.0), 0.5)
    assert found.training.reparameterise
    assert found.strategy.settings["steps"] == 14
    assert found.image == (1024, 2048)


def test_the_studies_have_the_networks_of_tables_2_and_3() -> None:
    blocks, ways = (
        recipe(f"lpsnet-{name}", "paper").strategy.settings for name in ("blocks", "interactions")
    )
    assert len(blocks["entrants"]) == len(ways["entrants"]) == 7
    match = plan_of(parse_architecture(blocks["match"]), Shape(3, 1024, 2048), 19)
    assert round(match.macs() / 1e9, 2) == 18.42  # specification of LPS-Net, section 3
    best = next(item for item in ways["entrants"] if item["name"] == "bilateral_b")
    assert (
        round(plan_of(parse_architecture(best["architecture"]), Shape(3, 1024, 2048), 19).macs() / 1e9, 2)
        == 24.02
    )


def test_blocks_are_compared_at_the_cost_of_plain_convolutions(tmp_path: Path) -> None:
    first = recipe("lpsnet-blocks").job(place(tmp_path)).preview()
    costs = {str(item.origin["entrant"]): item.cost for item in first}
    assert len(costs) == 7
    assert all(abs(cost / costs["conv"] - 1) < 0.25 for cost in costs.values()), costs


def test_a_budget_reads_in_the_unit_of_its_cost() -> None:
    assert parse_limit("300M", CostSpec()) == parse_limit("0.3 GMACs", CostSpec()) == 3e8
    assert parse_limit("5kparams", CostSpec(kind="params")) == 5000
    latency = CostSpec(kind="latency", target="cpu/eager/fp32")
    assert (parse_limit("12ms", latency), parse_limit("50fps", latency)) == (12, 20)
    for text in ("12ms", "60fps", "0", "-3M", "M", "nan"):
        with pytest.raises(UserError, match=r"budget '.*--target"):
            parse_limit(text, CostSpec())


def test_costs_that_contradict_themselves_are_refused() -> None:
    with pytest.raises(UserError, match="needs a target"):
        CostSpec(kind="latency")
    with pytest.raises(UserError, match="depends on no device"):
        CostSpec(kind="macs", target="cpu/eager/fp32")


def test_executors_follow_their_settings() -> None:
    assert ExecutorSpec().build("cpu") == Serial()
    assert ExecutorSpec(kind="processes", workers=3).build("cpu") == Processes(devices=("cpu",) * 3)
    ray = ExecutorSpec(kind="ray", workers=2, address="there:6379").build("cpu")
    assert ray == Ray(address="there:6379", workers=2)
    with pytest.raises(UnknownName, match="did you mean 'processes'"):
        ExecutorSpec(kind="process")
    with pytest.raises(UserError, match="use --executor processes"):
        ExecutorSpec(workers=2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"evaluator": "shared"}, r"'shared' slices a trained supernet.*use the evaluator 'train'"),
        ({"evaluator": "trian"}, "no evaluator is called 'trian'; did you mean 'train'"),
        ({"strategy": Part(kind="evolve")}, "no strategy is called 'evolve'; did you mean 'evolution'"),
        ({"space": Part(kind="decoder_cell")}, "no ordered decision"),
        (
            {"space": Part(kind="scalable_path", settings={"paths": "x"})},
            "settings of space 'scalable_path': paths",
        ),
        ({"data": "nothing"}, "nothing"),
    ],
)
def test_what_cannot_work_is_refused_before_the_run(change: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises((UnknownName, Unsupported, UserError), match=words):
        replace(recipe(), **change).job(place(tmp_path))


def test_choices_change_the_recipe_and_wrong_ones_are_explained(tmp_path: Path) -> None:
    around = Context(cache=tmp_path)

    def asked(changes: tuple[str, ...] = (), **choices: Any) -> SearchRecipe:
        return search_recipe("lpsnet", DATA, SearchChoices(**choices), changes=changes, context=around)

    found = asked(
        strategy="evolution", trials=5, workers=2, seed=3, budget="2M", changes=("evaluator.fit.steps=1",)
    )
    assert (found.strategy.kind, found.strategy.settings["trials"]) == ("evolution", 5)
    assert (found.executor.kind, found.seed, found.limit, found.image) == ("processes", 3, 2e6, (64, 128))
    assert found.training.fit.steps == 1
    with pytest.raises(
        UserError, match="--trials: strategy 'expansion' has no such setting; it counts steps"
    ):
        asked(trials=5)
    with pytest.raises(UnknownName, match="did you mean 'random'"):
        asked(strategy="randm")
    with pytest.raises(UnknownName, match="no choice of a search is called 'budgt'"):
        search("lpsnet", tmp_path / "run", data=DATA, budgt="12ms")


def test_a_search_keeps_its_latency_table_and_needs_the_pack_no_more(tmp_path: Path) -> None:
    space, classes = ScalablePath(depths=(1, 2), width_steps=(1, 2), paths=1), len(TASK.classes)
    pack = Pack(
        space="scalable_path",
        settings={},
        image=(32, 64),
        classes=classes,
        target="cpu/onnxruntime/fp32",
        machine={},
        entries={
            key_of(call): Entry(us=1 + call.macs() / 1000) for call in space.calls(Shape(3, 32, 64), classes)
        },
    )
    file = tmp_path / "pack.json"
    pack.write(file)
    choices = SearchChoices(pack=file, budget="0.2ms")
    around = Context(cache=tmp_path / "cache")
    found = search_recipe("lpsnet", DATA, choices, image=(32, 64), context=around)
    job = found.job(place(tmp_path))
    (start,) = job.preview()
    assert found.cost.unit == job.problem.cost.unit == "ms"
    (tmp_path / "run").mkdir()
    next(job.steps())  # writes the copy before any trial
    file.unlink()
    assert found.job(place(tmp_path)).preview()[0].cost == start.cost < 0.2
    with pytest.raises(Unsupported, match=r"image: the pack has 32x64, wanted is 64x128"):
        replace(found, image=(64, 128)).job(place(tmp_path))

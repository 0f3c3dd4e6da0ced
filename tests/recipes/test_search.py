"""Search recipes: choices, fields by text, files, and refusals before any work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from segtailor.core.errors import RunProblem, UnknownName, Unsupported, UserError
from segtailor.core.plan import Shape
from segtailor.costs import Macs, Params
from segtailor.costs.keys import key_of
from segtailor.costs.latency import PackLatency, TargetLatency
from segtailor.costs.pack import Entry, Pack
from segtailor.data.synthetic import TASK
from segtailor.recipes.recipe import parse_recipe, recipe_document, with_settings
from segtailor.recipes.search import SearchRecipe
from segtailor.spaces.decoder_cell import DecoderCell
from segtailor.spaces.scalable_path import ScalablePath
from segtailor.strategies import Evolution, Expansion, Processes, Ray, Serial
from segtailor.strategies.evaluators.train import TrainEvaluator
from segtailor.systems import lpsnet
from segtailor.verbs.search import SearchChoices, parse_limit, search, search_recipe
from tests.systems.tiny import context_in, system_on

DATA = "synthetic:size=64x128,train=8,val=2"


def test_the_paper_scale_is_the_short_recipe_of_the_paper() -> None:
    found = system_on("lpsnet", DATA, scale="paper")
    assert isinstance(found.evaluator, TrainEvaluator)
    fit, augment = found.evaluator.fit, found.evaluator.augment
    assert (fit.optimiser, fit.lr, fit.momentum, fit.weight_decay) == ("sgd", 0.01, 0.9, 5e-4)
    assert (fit.batch, fit.steps, fit.schedule.kind, fit.schedule.power) == (16, 90_000, "poly", 0.9)
    assert (augment.crop, augment.scale, augment.flip) == ((768, 768), (0.5, 2.0), 0.5)
    assert found.evaluator.reparameterise
    assert found.strategy == Expansion(steps=14)
    assert found.image == (1024, 2048)


def test_a_budget_reads_in_the_unit_of_its_cost() -> None:
    assert parse_limit("300M", Macs().unit) == parse_limit("0.3 GMACs", Macs().unit) == 3e8
    assert parse_limit("5kparams", Params().unit) == 5000
    latency = TargetLatency(target="cpu/eager/fp32").unit
    assert (parse_limit("12ms", latency), parse_limit("50fps", latency)) == (12, 20)
    for text in ("12ms", "60fps", "0", "-3M", "M", "nan"):
        with pytest.raises(UserError, match=r"budget '.*--target"):
            parse_limit(text, Macs().unit)


def test_a_latency_names_a_target_or_a_pack(tmp_path: Path) -> None:
    def cost(**choices: Any) -> Any:
        return search_recipe("lpsnet", DATA, SearchChoices(**choices), context=context_in(tmp_path)).cost

    file, target = tmp_path / "pack.json", "cpu/eager/fp32"
    assert cost() == Macs()
    assert cost(target=target) == TargetLatency(target=target)
    assert cost(pack=file, force=True) == PackLatency(pack=str(file), force=True)
    assert cost(pack=file, target=target) == PackLatency(pack=str(file), target=target)
    with pytest.raises(UserError, match=r"recipe: cost\.target: Field required"):
        with_settings(lpsnet.SMALL, ["cost.kind=measured"])
    with pytest.raises(UserError, match=r"recipe: cost\.target: no such field; cost has: kind"):
        with_settings(lpsnet.SMALL, ['cost={"kind": "macs", "target": "cpu/eager/fp32"}'])


def test_executors_follow_the_choices(tmp_path: Path) -> None:
    def executor(**choices: Any) -> Any:
        return search_recipe("lpsnet", DATA, SearchChoices(**choices), context=context_in(tmp_path)).executor

    assert executor() == executor(workers=1) == executor(executor="serial", workers=1) == Serial()
    assert executor(workers=3) == executor(executor="processes", workers=3) == Processes(workers=3)
    assert executor(workers=2, address="there:6379") == Ray(address="there:6379", workers=2)
    with pytest.raises(UnknownName, match="did you mean 'processes'"):
        executor(executor="process")
    with pytest.raises(UserError, match="use --executor processes"):
        executor(executor="serial", workers=2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"strategy": {"kind": "evolve"}}, "strategy: no strategy is called 'evolve'; known: .*evolution"),
        ({"strategy": "evolution"}, r'strategy: write \{"kind": NAME\} with the fields of that strategy'),
        (
            {"strategy": {"kind": "evolution", "trial": 3}},
            r"strategy\.trial: no such field; strategy has: .*trials",
        ),
        ({"evaluator": {"kind": "trian"}}, "evaluator: no evaluator is called 'trian'; known: train, staged"),
        ({"evaluator": {"kind": "shared"}}, r"evaluator\.supernet: Field required"),
        (
            {"space": {"kind": "scalable_path", "paths": "x"}},
            r"space\.paths: Input should be a valid integer",
        ),
        (
            {"space": {"kind": "scalable_path", "path": 1}},
            r"space\.path: no such field; space has: kind, .*paths",
        ),
        (
            {"executor": {"kind": "serial", "workers": 2}},
            r"executor\.workers: no such field; executor has: kind",
        ),
        ({"objective": {"kind": "power", "exponent": -1}}, r"objective\.limit: Field required"),
        ({"colour": 1}, "colour: no such field; SearchRecipe has: name, data, image, space"),
    ],
)
def test_a_wrong_part_of_a_recipe_is_named_with_what_is_allowed(change: dict[str, Any], words: str) -> None:
    document = {**recipe_document(lpsnet.SMALL), **change}
    with pytest.raises(RunProblem, match=f"^recipe: {words}") as problem:
        parse_recipe(document, what="recipe")
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"space": DecoderCell()}, "no ordered decision"), ({"data": "nothing"}, "nothing")],
)
def test_what_cannot_work_is_refused_before_the_run(change: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        replace(system_on("lpsnet", DATA), **change).job(context_in(tmp_path))


def test_the_evaluator_shared_needs_a_supernet(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=r"'shared' slices a trained supernet.*use the evaluator 'train'"):
        search_recipe("lpsnet", DATA, SearchChoices(evaluator="shared"), context=context_in(tmp_path))
    with pytest.raises(UnknownName, match="no evaluator is called 'trian'; did you mean 'train'"):
        search_recipe("lpsnet", DATA, SearchChoices(evaluator="trian"), context=context_in(tmp_path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("strategy.stepz=3", "there is no 'stepz'; fields here are kind, steps"),
        ("training.fit.steps=3", "there is no 'training'; fields here are name, data"),
        ("steps=3", "there is no 'steps'; fields here are name, data"),
        ("strategy.steps=many", r"recipe: strategy\.steps: Input should be a valid integer"),
        ("strategy.kind=evolution", r"recipe: strategy\.steps: no such field; strategy has: kind, trials"),
        ("strategy", "is not FIELD=VALUE"),
    ],
)
def test_a_field_that_is_not_there_is_never_set_silently(change: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        with_settings(lpsnet.SMALL, [change])


def test_earlier_names_of_fields_are_still_read_on_the_command_line(tmp_path: Path) -> None:
    def changed(*changes: str) -> SearchRecipe:
        return search_recipe("lpsnet", DATA, changes=changes, context=context_in(tmp_path))

    old = changed("training.fit.steps=3", "strategy.settings.steps=2", "space.settings.paths=1")
    assert old == changed("evaluator.fit.steps=3", "strategy.steps=2", "space.paths=1")


def test_choices_change_the_recipe_and_wrong_ones_are_explained(tmp_path: Path) -> None:
    def asked(changes: tuple[str, ...] = (), **choices: Any) -> SearchRecipe:
        return search_recipe(
            "lpsnet", DATA, SearchChoices(**choices), changes=changes, context=context_in(tmp_path)
        )

    found = asked(
        strategy="evolution", trials=5, workers=2, seed=3, budget="2M", changes=("evaluator.fit.steps=1",)
    )
    assert found.strategy == Evolution(trials=5)
    assert (found.executor, found.seed, found.limit, found.image) == (Processes(workers=2), 3, 2e6, (64, 128))
    assert isinstance(found.evaluator, TrainEvaluator)
    assert found.evaluator.fit.steps == 1
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
    found = search_recipe("lpsnet", DATA, choices, image=(32, 64), context=context_in(tmp_path))
    job = found.job(context_in(tmp_path))
    (start,) = job.preview()
    assert found.cost.unit == job.problem.cost.unit == "ms"
    (tmp_path / "run").mkdir()
    next(job.steps())  # writes the copy before any trial
    file.unlink()
    assert found.job(context_in(tmp_path)).preview()[0].cost == start.cost < 0.2
    with pytest.raises(Unsupported, match=r"image: the pack has 32x64, wanted is 64x128"):
        replace(found, image=(64, 128)).job(context_in(tmp_path))

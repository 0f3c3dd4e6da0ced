"""The studies of auxiliary cells: whole runs with a chart, teachers, received recipes that are not trusted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.auxcells_studies import STUDIES
from benchmarks.search_strategies import Ablation, Contest

import segtailor
from benchmarks import search_strategies
from segtailor.core.errors import Unsupported, UserError
from segtailor.core.strategy import SearchProblem
from segtailor.core.task import Task
from segtailor.core.trust import Untrusted
from segtailor.data.synthetic import TASK
from segtailor.nets.bundle import Model, save_bundle
from segtailor.recipes.recipe import parse_recipe, recipe_document
from segtailor.recipes.search import SearchRecipe
from segtailor.runs import Context, Policy
from segtailor.spaces.decoder_cell.encoders import ENCODERS
from segtailor.strategies.evaluators.staged import StagedEvaluator
from segtailor.systems import auxcells
from segtailor.verbs.resume import resume
from segtailor.verbs.search import SearchChoices, search
from tests.strategies.tiny_encoder import TINY

DATA = "synthetic:size=32x64,train=10,val=2"
SIZE = (32, 64)
SHORT = {
    "rewards": ["controller", "random"],
    "tricks": ["baseline", "+Polyak", "+Polyak+AUX"],
    "ranking": ["search", "longer"],
}


@pytest.fixture(autouse=True)
def _prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENCODERS, "tiny", TINY)
    search_strategies.register()


def context(folder: Path, **more: Any) -> Context:
    return Context(cache=folder / "cache", device="cpu", policy=Policy(tensorboard=False), **more)


def tiny(study: str, **staged: Any) -> SearchRecipe:
    """Return the recipe of a study whose stages take a step or two."""
    base = auxcells.SYSTEM.on(DATA, scale="small", size=SIZE, crop=SIZE)
    controller: Any = base.strategy
    base = replace(base, strategy=replace(controller, trials=2, batch=2, hidden=8, layers=1))
    recipe = STUDIES.studies[study](base, "small")
    evaluator: Any = recipe.evaluator
    strategy: Any = recipe.strategy
    short = replace(
        evaluator,
        images=4,
        stage1=replace(evaluator.stage1, epochs=1, batch=2),
        stage2=replace(evaluator.stage2, steps=1, batch=2),
        **staged,
    )
    if isinstance(strategy, Ablation):
        strategy = replace(strategy, architectures=2)
    space: Any = recipe.space
    return replace(
        recipe, space=replace(space, encoder="tiny", channels=4), evaluator=short, strategy=strategy
    )


def received(folder: Path, document: Mapping[str, Any]) -> Path:
    """Write a run directory as somebody else may send it."""
    folder.mkdir(parents=True)
    (folder / "recipe.json").write_text(json.dumps(document))
    return folder


@pytest.mark.parametrize(
    ("study", "scale"),
    [*((study, "small") for study in STUDIES.studies), ("rewards", "paper"), ("tricks", "paper")],
)
def test_a_study_is_a_complete_recipe_that_survives_its_file(study: str, scale: Any) -> None:
    recipe = STUDIES.studies[study](auxcells.PAPER if scale == "paper" else auxcells.SMALL, scale)
    assert recipe.name == f"auxcells-{study}"
    assert isinstance(recipe.evaluator, StagedEvaluator)
    # The rewards study is a search as published; in the others all architectures are judged alike.
    assert (recipe.evaluator.early_stop is None) == (study != "rewards")
    assert parse_recipe(json.loads(json.dumps(recipe_document(recipe))), what="recipe") == recipe


@pytest.mark.parametrize("study", ["auxiliary", "ranking"])
def test_long_trainings_of_the_paper_name_their_program(study: str) -> None:
    with pytest.raises(Unsupported, match=f"auxcells_long {study} --search RUN"):
        STUDIES.studies[study](auxcells.PAPER, "paper")


def test_a_random_encoder_is_refused_at_the_scale_of_the_paper_unless_asked_for(tmp_path: Path) -> None:
    paper = SearchChoices(scale="paper")
    with pytest.raises(Unsupported, match="pre-trained encoder"):
        STUDIES.recipe("rewards", DATA, paper, context=context(tmp_path))
    recipe = STUDIES.recipe("rewards", DATA, replace(paper, start="none"), context=context(tmp_path))
    assert recipe.evaluator.encoder_weights == "random"  # type: ignore[union-attr]
    assert recipe.evaluator.early_stop is not None  # type: ignore[union-attr]


def test_controller_and_random_search_have_equal_trials() -> None:
    recipe = STUDIES.studies["rewards"](auxcells.PAPER, "paper")
    assert isinstance(recipe.strategy, Contest)
    trials = [contender.strategy.trials for contender in recipe.strategy.contenders]  # type: ignore[attr-defined]
    assert trials == [20_000, 20_000]


def test_the_study_of_auxiliary_outputs_has_three_kinds_of_three_decoders(tmp_path: Path) -> None:
    recipe = STUDIES.recipe("auxiliary", DATA, context=context(tmp_path))
    entrants: Any = recipe.strategy.entrants  # type: ignore[attr-defined]
    assert len(entrants) == 9
    assert [item.architecture.auxiliary for item in entrants[:3]] == ["cell", "plain", "none"]
    assert {item.architecture.encoder for item in entrants} == {"mobilenet_v2"}  # that of synthetic scenes


@pytest.mark.slow
@pytest.mark.parametrize("study", SHORT)
def test_the_studies_end_with_a_chart(study: str, tmp_path: Path) -> None:
    found: Any = search(tiny(study), tmp_path / "run", context=context(tmp_path))
    assert [row["entrant"] for row in found["study"]] == SHORT[study]
    assert (tmp_path / "run" / "report" / "chart.svg").read_text().startswith("<svg")


def model(folder: Path, classes: int) -> str:
    task = Task(classes=tuple(f"c{index}" for index in range(classes)))
    save_bundle(folder, Model(network=segtailor.create("lpsnet-step0", classes=classes), task=task))
    return str(folder)


@pytest.mark.slow
def test_a_teacher_is_followed_and_one_with_other_classes_refused(tmp_path: Path) -> None:
    classes = len(TASK.classes)
    taught = tiny("tricks", teacher=model(tmp_path / "teacher", classes))
    found: Any = search(taught, tmp_path / "run", context=context(tmp_path))
    assert [row["entrant"] for row in found["study"]][-1] == "+Polyak+AUX+KD"
    with pytest.raises(UserError, match=f"knows 3 classes, the data has {classes}"):
        tiny("tricks", teacher=model(tmp_path / "other", 3)).job(context(tmp_path))


@pytest.mark.parametrize("change", [{"teacher": "somebody_else:build"}, {"encoder_weights": "timm"}])
def test_variants_of_a_received_ablation_cannot_bring_code_or_weights_in(
    tmp_path: Path, change: dict[str, str]
) -> None:
    document: Any = recipe_document(tiny("tricks"))
    document["strategy"]["variants"][1]["changes"] = {"staged": change}
    with pytest.raises(Untrusted, match="--trust-code"):
        resume(received(tmp_path / "run", document), context=context(tmp_path))


def test_variants_cannot_move_the_cache(tmp_path: Path) -> None:
    document: Any = recipe_document(tiny("tricks"))
    document["strategy"]["variants"][1]["changes"] = {"cache": str(tmp_path / "elsewhere")}
    with pytest.raises(SearchProblem, match="where trials read and write"):
        resume(received(tmp_path / "run", document), trust_code=True, context=context(tmp_path))
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("study", STUDIES.studies)
def test_the_program_ends_with_its_table(
    study: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["images=4", "stage1.epochs=1", "stage1.batch=2", "stage2.steps=1", "stage2.batch=2"]
    fewer = ["strategy.architectures=2"] if study in ("tricks", "ranking") else []
    words = [
        study,
        "--data",
        DATA,
        "--out",
        str(tmp_path / "run"),
        "--cache",
        str(tmp_path),
        "--device",
        "cpu",
    ]
    changes = ["--set", "space.encoder=tiny", *(f"evaluator.{setting}" for setting in settings), *fewer]
    if study == "auxiliary":
        changes.remove("space.encoder=tiny")  # the entrants have theirs
    STUDIES.main(None, [*words, *changes])
    told = capsys.readouterr().out
    assert "entrant" in told
    assert "next: segtailor train" in told

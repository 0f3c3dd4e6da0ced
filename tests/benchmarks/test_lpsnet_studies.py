"""The design studies of LPS-Net: the networks of the paper's tables, equal costs, a whole run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.lpsnet_studies import STUDIES

from benchmarks import search_strategies
from segtailor.core.plan import Shape
from segtailor.core.space import plan_of
from segtailor.recipes.recipe import parse_recipe, recipe_document
from segtailor.recipes.search import SearchRecipe
from segtailor.runs import Context, Policy
from segtailor.systems import lpsnet
from segtailor.verbs.search import search

DATA = "synthetic:size=32x64,train=8,val=2"
IMAGE = Shape(3, 1024, 2048)


@pytest.fixture(autouse=True)
def _registered() -> None:
    search_strategies.register()


def small(study: str) -> SearchRecipe:
    base = lpsnet.SYSTEM.on(DATA, scale="small", size=(32, 64), crop=(32, 64))
    return STUDIES.studies[study](base, "small")


def test_the_studies_have_the_networks_of_tables_2_and_3() -> None:
    blocks, ways = (
        STUDIES.studies[name](lpsnet.PAPER, "paper").strategy for name in ("blocks", "interactions")
    )
    assert len(blocks.entrants) == len(ways.entrants) == 7  # type: ignore[attr-defined]
    match = plan_of(blocks.match, IMAGE, 19)  # type: ignore[attr-defined]
    assert round(match.macs() / 1e9, 2) == 18.42  # specification of LPS-Net, section 3
    best = next(item for item in ways.entrants if item.name == "bilateral_b")  # type: ignore[attr-defined]
    assert round(plan_of(best.architecture, IMAGE, 19).macs() / 1e9, 2) == 24.02


@pytest.mark.parametrize("study", STUDIES.studies)
def test_a_study_survives_its_file(study: str) -> None:
    for recipe in (small(study), STUDIES.studies[study](lpsnet.PAPER, "paper")):
        assert parse_recipe(json.loads(json.dumps(recipe_document(recipe))), what="recipe") == recipe


def test_blocks_are_compared_at_the_cost_of_plain_convolutions(tmp_path: Path) -> None:
    first = small("blocks").job(Context(folder=tmp_path / "run", cache=tmp_path, device="cpu")).preview()
    costs = {str(item.origin["entrant"]): item.cost for item in first}
    assert len(costs) == 7
    assert all(abs(cost / costs["conv"] - 1) < 0.25 for cost in costs.values()), costs


@pytest.mark.slow
def test_a_study_names_every_entrant_and_keeps_its_architecture(tmp_path: Path) -> None:
    recipe = small("interactions")
    evaluator: Any = recipe.evaluator
    short = replace(evaluator, fit=replace(evaluator.fit, steps=1, batch=2))
    context = Context(cache=tmp_path / "cache", device="cpu", policy=Policy(tensorboard=False))
    found: Any = search(replace(recipe, evaluator=short), tmp_path / "run", context=context)
    names = [row["entrant"] for row in found["study"]]
    assert names[0] == "none"
    assert len(names) == len(set(names)) == 7
    assert len(list((tmp_path / "run" / "architectures").glob("*.plan.json"))) == 7
    svg = (tmp_path / "run" / "report" / "pareto.svg").read_text()
    assert all(f">{name}</text>" in svg for name in names)


@pytest.mark.slow
@pytest.mark.parametrize("study", STUDIES.studies)
def test_the_program_ends_with_its_table(
    study: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    settings = ["fit.steps=1", "fit.batch=2", "reparameterise=false"]
    STUDIES.main(None, [*words, "--set", *(f"evaluator.{setting}" for setting in settings)])
    told = capsys.readouterr().out
    assert "entrant" in told
    assert "next: segtailor train" in told


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    words = ["blocks", "--data", DATA, "--out", str(tmp_path / "run"), "--cache", str(tmp_path)]
    with pytest.raises(SystemExit, match=r"error: '--set evaluator\.fit\.step=1': there is no 'step'"):
        STUDIES.main(None, [*words, "--set", "evaluator.fit.step=1"])
    with pytest.raises(SystemExit, match="error: no architecture within 10 MACs"):
        STUDIES.main(None, [*words, "--budget", "10MACs"])
    assert not (tmp_path / "run" / "recipe.json").exists()

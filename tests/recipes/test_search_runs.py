"""Searches that train: the worker's entry, cached trials, halving, failures, and the Python function."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import segtailor
from segtailor.core.codec import to_json
from segtailor.core.errors import UserError
from segtailor.core.plan import Shape
from segtailor.core.space import architecture_document, plan_of
from segtailor.core.strategy import SearchProblem, Trial
from segtailor.recipes.evaluators import judge_by_training
from segtailor.recipes.search import SearchRecipe, plan_document
from segtailor.runs import read_recipe
from segtailor.spaces import published
from segtailor.strategies import Expansion
from segtailor.strategies.evaluators.train import TrainEvaluator
from segtailor.strategies.trial_strategy import Halving
from segtailor.verbs.resume import resume
from segtailor.verbs.search import search
from tests.systems.tiny import context_in, system_on

DATA = "synthetic:size=32x64,train=8,val=2"


def tiny(**strategy: Any) -> SearchRecipe:
    """Return a recipe that trains each candidate for one step of two images; arguments are of its strategy."""
    recipe = system_on("lpsnet", DATA)
    assert isinstance(recipe.strategy, Expansion)
    return replace(with_fit(recipe, steps=1, batch=2), strategy=replace(recipe.strategy, **strategy))


def with_fit(recipe: SearchRecipe, **fit: Any) -> SearchRecipe:
    assert isinstance(recipe.evaluator, TrainEvaluator)
    changed = replace(recipe.evaluator, fit=replace(recipe.evaluator.fit, **fit))
    return replace(recipe, evaluator=changed)


def trial(tmp_path: Path, **changes: Any) -> Trial:
    training = {**to_json(tiny().evaluator), **changes}
    return Trial(
        id=4,
        architecture=architecture_document(published("lpsnet-step0")),
        seed=1,
        evaluator={"training": training, "data": DATA, "cache": str(tmp_path), "judging": 0.5},
    )


def test_the_workers_entry_rebuilds_everything_from_plain_settings(tmp_path: Path) -> None:
    plain = json.loads(json.dumps(to_json(trial(tmp_path))))
    result = judge_by_training(Trial(**plain), "cpu")
    assert result.status == "done"
    assert 0 <= (result.quality or -1) <= 1
    assert judge_by_training(trial(tmp_path), "cpu").quality == result.quality
    assert result.metrics["steps"] == 1


def test_the_workers_entry_names_a_wrong_setting(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="training of the evaluator: augment"):
        judge_by_training(trial(tmp_path, augment={"crop": "large"}), "cpu")


@pytest.mark.slow
def test_a_search_again_elsewhere_takes_its_trials_from_the_cache(tmp_path: Path) -> None:
    recipe = tiny(steps=1)
    first: Any = search(recipe, tmp_path / "a", context=context_in(tmp_path))
    second: Any = search(recipe, tmp_path / "b", context=context_in(tmp_path))
    assert not any(item["result"]["cached"] for item in first["trials"])
    assert all(item["result"]["cached"] for item in second["trials"])
    assert second["quality"] == first["quality"]
    other: Any = search(replace(recipe, seed=1), tmp_path / "c", context=context_in(tmp_path))
    assert not any(item["result"]["cached"] for item in other["trials"])  # another seed, another training


@pytest.mark.slow
def test_halving_is_a_setting_of_the_recipe(tmp_path: Path) -> None:
    recipe = tiny(steps=1, halving=Halving(rungs=(0.5,), keep=0.5))
    found: Any = search(recipe, tmp_path / "run", context=context_in(tmp_path))
    assert {item["budget"] for item in found["trials"]} == {0.5, 1.0}


def test_a_search_whose_trials_all_fail_says_why_and_can_be_resumed(tmp_path: Path) -> None:
    broken = with_fit(replace(tiny(steps=1), retries=0), lr=1e30, steps=40, patience=1)
    for _ in range(2):
        with pytest.raises(SearchProblem, match=r"trials of the first network failed.*diverged"):
            search(broken, tmp_path / "run", context=context_in(tmp_path))
    with pytest.raises(SearchProblem, match="diverged"):
        resume(tmp_path / "run", context=context_in(tmp_path))
    assert read_recipe(tmp_path / "run")["kind"] == "search"


def test_search_is_a_function_of_the_package(tmp_path: Path) -> None:
    choices: Any = {"strategy": "random", "trials": 2, "budget": "4M", "image": (32, 64)}
    changes = ["evaluator.fit.steps=1", "evaluator.fit.batch=2"]
    out = tmp_path / "run"
    found = segtailor.search(
        "lpsnet", out, data=DATA, context=context_in(tmp_path), changes=changes, **choices
    )
    assert Path(str(found["architecture"])).exists()
    with pytest.raises(UserError, match="needs data"):
        segtailor.search("lpsnet", out)


def test_a_plan_is_written_with_shapes_and_counts() -> None:
    plan = plan_of(published("lpsnet-s"), Shape(3, 64, 128), 19)
    document: Any = json.loads(json.dumps(plan_document(plan)))
    assert sum(node["macs"] for node in document["nodes"]) == plan.macs()
    assert [node["name"] for node in document["nodes"]] == [node.name for node in plan.nodes]
    assert document["outputs"]["main"] == document["nodes"][-1]["name"]

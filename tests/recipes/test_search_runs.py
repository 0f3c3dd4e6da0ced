"""Searches that train: the worker's entry, cached trials, halving, failures, studies, and the Python function."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from segtailor.recipes.systems import Occasion

import segtailor
from segtailor.core.codec import to_json
from segtailor.core.errors import UserError
from segtailor.core.plan import Shape
from segtailor.core.registry import SYSTEMS
from segtailor.core.space import architecture_document, plan_of
from segtailor.core.strategy import SearchProblem, Trial
from segtailor.recipes.evaluators import judge_by_training
from segtailor.recipes.search import SearchRecipe, plan_document
from segtailor.runs import Context, Policy, read_recipe
from segtailor.spaces import published
from segtailor.verbs.resume import resume
from segtailor.verbs.search import search

DATA = "synthetic:size=32x64,train=8,val=2"
OCCASION = Occasion(data=DATA, size=(32, 64), crop=(32, 64))


def tiny(name: str = "lpsnet", **settings: Any) -> SearchRecipe:
    """Return a recipe that trains each candidate for one step of two images."""
    recipe = SYSTEMS.get(name)("small", OCCASION)
    fit = replace(recipe.training.fit, steps=1, batch=2)
    strategy = replace(recipe.strategy, settings={**recipe.strategy.settings, **settings})
    return replace(recipe, training=replace(recipe.training, fit=fit), strategy=strategy)


def around(folder: Path) -> Context:
    return Context(cache=folder / "cache", device="cpu", policy=Policy(tensorboard=False))


def trial(tmp_path: Path, **changes: Any) -> Trial:
    training = {**to_json(tiny().training), **changes}
    return Trial(
        id=4,
        architecture=architecture_document(published("lpsnet-step0")),
        seed=1,
        evaluator={"training": training, "data": DATA, "cache": str(tmp_path)},
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
def test_a_study_tells_every_entrant_and_keeps_its_architecture(tmp_path: Path) -> None:
    found: Any = search(tiny("lpsnet-interactions"), tmp_path / "run", context=around(tmp_path))
    names = [row["entrant"] for row in found["study"]]
    assert names[0] == "none"
    assert len(names) == len(set(names)) == 7
    kept = list((tmp_path / "run" / "architectures").glob("*.plan.json"))
    assert len(kept) == 7
    svg = (tmp_path / "run" / "report" / "pareto.svg").read_text()
    assert all(f">{name}</text>" in svg for name in names)


@pytest.mark.slow
def test_a_search_again_elsewhere_takes_its_trials_from_the_cache(tmp_path: Path) -> None:
    recipe = tiny(steps=1)
    first: Any = search(recipe, tmp_path / "a", context=around(tmp_path))
    second: Any = search(recipe, tmp_path / "b", context=around(tmp_path))
    assert not any(item["result"]["cached"] for item in first["trials"])
    assert all(item["result"]["cached"] for item in second["trials"])
    assert second["quality"] == first["quality"]
    other: Any = search(replace(recipe, seed=1), tmp_path / "c", context=around(tmp_path))
    assert not any(item["result"]["cached"] for item in other["trials"])  # another seed, another training


@pytest.mark.slow
def test_halving_is_a_setting_of_the_recipe(tmp_path: Path) -> None:
    recipe = tiny(steps=1, halving={"rungs": [0.5], "keep": 0.5})
    found: Any = search(recipe, tmp_path / "run", context=around(tmp_path))
    assert {item["budget"] for item in found["trials"]} == {0.5, 1.0}


def test_a_search_whose_trials_all_fail_says_why_and_can_be_resumed(tmp_path: Path) -> None:
    broken = replace(tiny(steps=1), retries=0)
    fit = replace(broken.training.fit, lr=1e30, steps=40, patience=1)
    broken = replace(broken, training=replace(broken.training, fit=fit))
    for _ in range(2):
        with pytest.raises(SearchProblem, match=r"trials of the first network failed.*diverged"):
            search(broken, tmp_path / "run", context=around(tmp_path))
    with pytest.raises(SearchProblem, match="diverged"):
        resume(tmp_path / "run", context=around(tmp_path))
    assert read_recipe(tmp_path / "run")["kind"] == "search"


def test_search_is_a_function_of_the_package(tmp_path: Path) -> None:
    choices: Any = {"strategy": "random", "trials": 2, "budget": "4M", "image": (32, 64)}
    changes = ["evaluator.fit.steps=1", "evaluator.fit.batch=2"]
    out = tmp_path / "run"
    found = segtailor.search("lpsnet", out, data=DATA, context=around(tmp_path), changes=changes, **choices)
    assert Path(str(found["architecture"])).exists()
    with pytest.raises(UserError, match="needs data"):
        segtailor.search("lpsnet", out)


def test_a_plan_is_written_with_shapes_and_counts() -> None:
    plan = plan_of(published("lpsnet-s"), Shape(3, 64, 128), 19)
    document: Any = json.loads(json.dumps(plan_document(plan)))
    assert sum(node["macs"] for node in document["nodes"]) == plan.macs()
    assert [node["name"] for node in document["nodes"]] == [node.name for node in plan.nodes]
    assert document["outputs"]["main"] == document["nodes"][-1]["name"]

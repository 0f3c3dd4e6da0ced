"""Stages are done once, in order, each kept; an interruption loses nothing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from segtailor.core.errors import Interrupted, UserError
from segtailor.recipes.recipe import parse_recipe, recipe_document
from segtailor.recipes.train import train_recipe
from segtailor.runs import Context
from segtailor.tailoring.choosing import choose
from segtailor.tailoring.context import Context
from segtailor.tailoring.job import Tailoring
from segtailor.tailoring.settings import Request, TailorRecipe
from tests.tailoring.test_choosing import FACTS, Described


def recipe(seconds: float | None = None) -> TailorRecipe:
    request = Request(data="synthetic", target="cpu/onnxruntime/fp32", budget_ms=20.0, seconds=seconds)
    return choose(request, FACTS, Described(), data="synthetic")


def tailoring(
    folder: Path, stages: list[tuple[str, Callable[[Context], dict[str, Any]]]], **options: Any
) -> Tailoring:
    place = Context(folder=folder, cache=folder / "cache")
    return Tailoring(recipe=recipe(**options), place=place, around=Context(), stages=stages)


def counting(log: list[str], name: str) -> tuple[str, Callable[[Context], dict[str, Any]]]:
    def work(context: Context) -> dict[str, Any]:
        log.append(name)
        return {"seen": sorted(context.outcomes)}

    return name, work


def test_a_recipe_is_plain_data_and_comes_back_the_same() -> None:
    document = json.loads(json.dumps(recipe_document(recipe(600.0))))
    assert parse_recipe(document, what="recipe") == recipe(600.0)


def test_stages_run_in_order_and_see_what_was_found_before(tmp_path: Path) -> None:
    log: list[str] = []
    job = tailoring(tmp_path, [counting(log, "data"), counting(log, "search"), counting(log, "train")])
    steps = list(job.steps())
    assert log == ["data", "search", "train"]
    assert [step.done for step in steps] == [1, 2, 3]
    assert job.outcomes["train"] == {"seen": ["data", "search"]}


@pytest.mark.parametrize("stop_before", ["data", "search", "train"])
def test_stopped_in_any_stage_the_rest_is_done_and_nothing_twice(tmp_path: Path, stop_before: str) -> None:
    log: list[str] = []

    def stopped(context: Context) -> dict[str, Any]:
        raise Interrupted("stopped; go on with: segtailor resume elsewhere")

    names = ["data", "search", "train"]
    first = [counting(log, name) if name != stop_before else (name, stopped) for name in names]
    with pytest.raises(Interrupted, match=f"stage '{stop_before}'.*segtailor resume {tmp_path}"):
        list(tailoring(tmp_path, first).steps())
    again = tailoring(tmp_path, [counting(log, name) for name in names])
    list(again.steps())
    assert log == names
    assert again.outcomes["train"] == {"seen": ["data", "search"]}


def test_a_stage_that_fails_leaves_no_outcome_and_its_time_counts(tmp_path: Path) -> None:
    def failing(context: Context) -> dict[str, Any]:
        raise UserError("the disk is full; make room.")

    with pytest.raises(UserError, match="make room"):
        list(tailoring(tmp_path, [("data", failing)]).steps())
    assert not (tmp_path / "stages" / "data.json").exists()
    assert "data" in json.loads((tmp_path / "stages" / "clock.json").read_text())


def test_where_no_network_keeps_the_budget_nothing_is_searched(tmp_path: Path) -> None:
    log: list[str] = []
    stages = [
        counting(log, "data"),
        ("fastest", lambda _: {"stop": "no network keeps the budget"}),
        counting(log, "search"),
        counting(log, "train"),
    ]
    list(tailoring(tmp_path, stages).steps())
    assert log == ["data"]


@pytest.mark.parametrize(("spent", "faster"), [(0.0, True), (500.0, False)])
def test_the_pace_follows_the_time_that_is_left(tmp_path: Path, spent: float, faster: bool) -> None:
    paces: list[float] = []

    def search(context: Context) -> dict[str, Any]:
        paces.append(context.pace)
        assert context.paced(100) == max(2, round(100 * context.pace))
        return {}

    (tmp_path / "stages").mkdir()
    (tmp_path / "stages" / "clock.json").write_text(json.dumps({"pack": spent}))
    list(tailoring(tmp_path, [("search", search)], seconds=600.0).steps())
    assert (paces[0] > 1) == faster
    assert 0.25 <= paces[0] <= 10


def test_without_a_time_the_plan_is_kept_to_the_step(tmp_path: Path) -> None:
    def search(context: Context) -> dict[str, Any]:
        return {"steps": context.paced(37)}

    job = tailoring(tmp_path, [("search", search)])
    list(job.steps())
    assert job.outcomes["search"] == {"steps": 37}


def test_a_run_of_a_stage_goes_on_with_what_it_began_with(tmp_path: Path) -> None:
    """Resumed, less time is left, so a stage would be planned shorter: what it began with counts."""
    data, around = (
        "synthetic:size=32x64,train=4,val=2,seed=0",
        Context(cache=tmp_path / "c", device="cpu"),
    )
    context = Context(recipe=recipe(), folder=tmp_path / "run", around=around)
    first, second = (
        train_recipe(
            "lpsnet-step0",
            data,
            crop=(32, 64),
            changes=[f"fit.steps={steps}", "fit.batch=2"],
            surroundings=around,
        )
        for steps in (1, 3)
    )
    assert context.carry_out(first, "train")["steps"] == 1
    (tmp_path / "run" / "stages" / "train" / "result.json").unlink()  # as if stopped before the end
    assert context.carry_out(second, "train")["steps"] == 1

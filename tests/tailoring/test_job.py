"""Stages are done once, in order, and every outcome is written; an interruption loses nothing."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from segtailor.core.errors import Interrupted, RunProblem, UserError
from segtailor.data import locate as locate_module
from segtailor.data.dataset import Dataset
from segtailor.data.locate import locate
from segtailor.recipes.recipe import RunsItself, parse_recipe, recipe_document
from segtailor.recipes.train import train_recipe
from segtailor.runs import Context
from segtailor.tailoring import job as job_module
from segtailor.tailoring.choosing import choose
from segtailor.tailoring.job import StageRunner, Tailoring
from segtailor.tailoring.recipe import TailorRecipe, TailorRequest
from segtailor.tailoring.reporting import NoDelivery
from segtailor.tailoring.stage import DataOutcome, FastestOutcome, StageContext, TimedNetwork
from tests.tailoring.test_choosing import FACTS, Described

DATA = "synthetic:size=32x64,train=4,val=2,seed=0"
NAMES = ("data", "search", "train")


def recipe(seconds: float | None = None) -> TailorRecipe:
    request = TailorRequest(data=DATA, target="cpu/onnxruntime/fp32", budget_ms=20.0, seconds=seconds)
    return choose(request, FACTS, Described(), data=DATA)


def stage_context(folder: Path, **changes: Any) -> StageContext:
    """What a stage is given, of a tailoring in a folder."""
    context = Context(folder=folder, cache=folder / "cache", device="cpu")
    plan = changes.pop("recipe", recipe())
    return StageContext(recipe=plan, context=context, dataset=locate(plan.data), **changes)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a stage of these tests returns: the names of the outcomes that it was given."""

    given: tuple[str, ...]


Work = Callable[..., Seen]


def runner(folder: Path, *, seconds: float | None = None) -> StageRunner:
    return StageRunner(recipe=recipe(seconds), context=Context(folder=folder), dataset=locate(DATA))


def counting(log: list[str], name: str) -> Work:
    def work(stage: StageContext, *before: Seen) -> Seen:
        log.append(name)
        return Seen(given=tuple(name for outcome in before for name in (*outcome.given, "one")))

    return work


def outcomes(run: StageRunner, stages: dict[str, Work]) -> list[Seen]:
    """Do stages one after the other; each is given all outcomes before it."""
    done: list[Seen] = []
    for name, work in stages.items():
        steps = run.stage(name, Seen, work, *done)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                done.append(end.value)
                break
    return done


def test_a_recipe_is_plain_data_and_comes_back_the_same() -> None:
    document = json.loads(json.dumps(recipe_document(recipe(600.0))))
    assert parse_recipe(document, what="recipe") == recipe(600.0)


def test_a_recipe_carries_itself_out_so_that_resume_need_not_know_it() -> None:
    assert isinstance(recipe(), RunsItself)


def test_stages_run_in_order_and_are_given_what_was_found_before(tmp_path: Path) -> None:
    log: list[str] = []
    done = outcomes(runner(tmp_path), {name: counting(log, name) for name in NAMES})
    assert log == list(NAMES)
    assert [outcome.given for outcome in done] == [(), ("one",), ("one", "one", "one")]
    assert json.loads((tmp_path / "stages" / "search.json").read_text()) == {"given": ["one"]}


@pytest.mark.parametrize("stop_before", NAMES)
def test_stopped_in_any_stage_the_rest_is_done_and_nothing_twice(tmp_path: Path, stop_before: str) -> None:
    log: list[str] = []

    def stopped(stage: StageContext, *before: Seen) -> Seen:
        raise Interrupted("stopped; go on with: segtailor resume elsewhere")

    first = {name: counting(log, name) if name != stop_before else stopped for name in NAMES}
    with pytest.raises(Interrupted, match=f"stage '{stop_before}'.*segtailor resume {tmp_path}"):
        outcomes(runner(tmp_path), first)
    done = outcomes(runner(tmp_path), {name: counting(log, name) for name in NAMES})
    assert log == list(NAMES)
    assert done[-1].given == ("one", "one", "one")


def test_a_stage_that_fails_leaves_no_outcome_and_its_time_counts(tmp_path: Path) -> None:
    def failing(stage: StageContext) -> Seen:
        raise UserError("the disk is full; make room.")

    with pytest.raises(UserError, match="make room"):
        outcomes(runner(tmp_path), {"data": failing})
    assert not (tmp_path / "stages" / "data.json").exists()
    assert "data" in json.loads((tmp_path / "stages" / "clock.json").read_text())


@pytest.mark.parametrize("text", ["{}", '{"given": 3}', '{"given": [], "more": 1}', "[]", "no JSON"])
def test_a_damaged_outcome_is_refused_by_the_name_of_its_stage(tmp_path: Path, text: str) -> None:
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages" / "data.json").write_text(text)
    with pytest.raises(RunProblem, match="stage 'data'"):
        outcomes(runner(tmp_path), {"data": counting([], "data")})


def test_where_no_network_keeps_the_budget_nothing_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = TimedNetwork(network="lpsnet-step0", median_ms=50.0, p95_ms=60.0, making_seconds=1.0)
    fastest = FastestOutcome(**vars(row), networks=(row,), possible=False, stop="none keeps the budget")
    data = DataOutcome(ok=True, findings=(), splits={}, used=DATA)
    monkeypatch.setattr(job_module, "examine_data", lambda _: data)
    monkeypatch.setattr(job_module, "measure_fastest", lambda _: fastest)
    job = Tailoring(recipe=recipe(), context=Context(folder=tmp_path))
    assert [step.done for step in job.steps()] == [1, 2]
    assert job.ending == NoDelivery.of_timed(row, data=data, reason="none keeps the budget")


@pytest.mark.parametrize(("spent", "faster"), [(0.0, True), (500.0, False)])
def test_the_pace_follows_the_time_that_is_left(tmp_path: Path, spent: float, faster: bool) -> None:
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages" / "clock.json").write_text(json.dumps({"pack": spent}))
    stage = runner(tmp_path, seconds=600.0).stage_context("search")
    assert stage.paced(100) == max(2, round(100 * stage.pace))
    assert (stage.pace > 1) == faster
    assert 0.25 <= stage.pace <= 10


def test_without_a_time_the_plan_is_kept_to_the_step(tmp_path: Path) -> None:
    assert runner(tmp_path).stage_context("search").paced(37) == 37


def test_a_run_of_a_stage_goes_on_with_what_it_began_with(tmp_path: Path) -> None:
    """Resumed, less time is left, so a stage would be planned shorter: what it began with counts."""
    stage = stage_context(tmp_path / "run")
    base = train_recipe("lpsnet-step0", DATA, crop=(32, 64), context=stage.context)
    first, second = (replace(base, fit=replace(base.fit, steps=steps, batch=2)) for steps in (1, 3))
    assert stage.carry_out(first, "train")["steps"] == 1
    (tmp_path / "run" / "stages" / "train" / "result.json").unlink()  # as if stopped before the end
    assert stage.carry_out(second, "train")["steps"] == 1


@pytest.mark.slow
def test_timing_a_network_does_not_open_the_data_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = recipe()
    request = replace(plan.request, target="cpu/eager/fp32?threads=1")
    plan = replace(plan, request=request, image=(32, 64), timing_seconds=0.01)
    stage = stage_context(tmp_path, recipe=plan)
    opened: list[str] = []
    original = locate_module.dataset_from

    def counted(name: str, options: Any, **more: Any) -> Dataset:
        opened.append(name)
        return original(name, options, **more)

    monkeypatch.setattr(locate_module, "dataset_from", counted)
    for _ in range(3):
        assert stage.timed("small", "lpsnet-step0").network == "small"
    assert stage.space.decisions
    assert opened == []
    locate(DATA)
    assert opened == ["synthetic"]

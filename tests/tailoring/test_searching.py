"""Every published system can be searched with, its length and budget set; prices fitted to timed networks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from segtailor.core.cost import Power, Within
from segtailor.core.errors import UserError
from segtailor.costs.analytic import Macs
from segtailor.costs.fitted import FittedLatency
from segtailor.costs.pack import Trust
from segtailor.costs.sampling import LatencyFit
from segtailor.costs.work import Work
from segtailor.recipes.recipe import parse_recipe, recipe_document
from segtailor.recipes.search import SearchRecipe
from segtailor.strategies import Controller, Evolution, Expansion, Processes, Serial
from segtailor.strategies.evaluators.staged import StagedEvaluator
from segtailor.strategies.evaluators.train import TrainEvaluator
from segtailor.strategies.gradient_settings import Gradient
from segtailor.strategies.one_shot import OneShot
from segtailor.tailoring.choosing import SYSTEMS
from segtailor.tailoring.searching import fit_prices, fitted_limit, search_recipe
from segtailor.tailoring.stage import (
    PackOutcome,
    StageContext,
    read_outcome,
    write_outcome,
)
from tests.tailoring.test_job import recipe, stage_context

DATA = "synthetic:size=64x96,train=8,val=2,seed=0"
LIMIT = 123_456_789.0
LIMIT_MS = 12.5


def stage(
    folder: Path,
    system: str,
    *,
    pace: float = 1.0,
    workers: int = 2,
    seconds: float | None = None,
    **effort: Any,
) -> StageContext:
    plan = recipe(seconds)
    plan = replace(
        plan,
        data=DATA,
        system=system,
        image=(64, 96),
        crop=(32, 64),
        batch=4,
        workers=workers,
        search_limit_macs=LIMIT,
        search_limit_ms=LIMIT_MS,
        effort=replace(plan.effort, supernet_steps=20, candidate_steps=12, **effort),
    )
    return stage_context(folder, recipe=plan, pace=pace, left=seconds)


def asked(folder: Path, system: str, **options: Any) -> SearchRecipe:
    return search_recipe(stage(folder, system, **options), PackOutcome(reason="none"))


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_searches_at_the_size_and_within_the_budget_asked_for(
    tmp_path: Path, system: str
) -> None:
    found = asked(tmp_path, system)
    assert (found.name, found.image) == (system, (64, 96))
    assert (found.cost, found.limit) == (Macs(), LIMIT)
    assert found.space.decisions
    if isinstance(found.objective, Power | Within):
        assert found.objective.limit == LIMIT
    if isinstance(found.objective, Within):
        assert found.objective.least == pytest.approx(0.6 * LIMIT)
    assert parse_recipe(recipe_document(found), what="recipe") == found


@pytest.mark.parametrize("system", SYSTEMS)
def test_with_fitted_prices_the_budget_is_what_measuring_left_of_it(tmp_path: Path, system: str) -> None:
    fit = FittedLatency(target="cpu/onnxruntime/fp32", us=Work(kernels=2.0, pointwise=7.5))
    outcome = PackOutcome(reason="a test", fit=fit, limit_ms=8.25)
    found = search_recipe(stage(tmp_path, system), outcome)
    assert (found.cost, found.limit) == (fit, 8.25)
    if isinstance(found.objective, Power | Within):
        assert found.objective.limit == 8.25
    assert parse_recipe(recipe_document(found), what="recipe") == found


@pytest.mark.parametrize(
    ("slow_runs", "rest_ms", "planned_ms", "limit_ms"),
    [
        (1.0, 0.0, 15.0, 19.0),  # all of the budget but a twentieth
        (1.25, 2.0, 15.0, 13.2),  # less what slow runs and the stages after the network take
        (1.0, 100.0, 15.0, 4.0),
        (1.0, 0.0, 6.0, 6.0),  # larger ones could not be trained
    ],
)
def test_the_limit_of_the_search_is_what_the_rest_leaves_of_the_budget(
    slow_runs: float, rest_ms: float, planned_ms: float, limit_ms: float
) -> None:
    fit = LatencyFit(
        cost=FittedLatency(target="cpu/onnxruntime/fp32", us=Work(kernels=1.0)),
        trust=Trust(pearson=1.0, spearman=1.0, mape=0.0, networks=()),
        seconds=(1.0,),
        slow_runs=slow_runs,
        rest_ms=rest_ms,
    )
    plan = replace(recipe(), search_limit_ms=planned_ms)
    assert fitted_limit(plan, fit) == pytest.approx(limit_ms)
    assert fitted_limit(plan, fit, smallest_ms=20.0) == pytest.approx(30.0)  # a search needs some choice


@pytest.mark.parametrize("seconds", [180.0, 900.0, 7200.0])
def test_fitting_takes_a_small_share_of_the_time(seconds: float) -> None:
    effort = recipe(seconds).effort
    assert 0 < effort.fit_seconds <= 0.08 * seconds


@pytest.mark.slow
def test_prices_are_fitted_to_networks_timed_on_the_target(tmp_path: Path) -> None:
    plan = recipe()
    request = replace(plan.request, target="cpu/eager/fp32?threads=1", budget_ms=10.0)
    effort = replace(plan.effort, fit_seconds=4.0)
    plan = replace(plan, request=request, image=(32, 64), system="elastic", effort=effort)
    found = fit_prices(stage_context(tmp_path, recipe=plan))
    assert found.fit is not None
    assert found.networks is not None
    assert found.networks >= 3
    assert found.seconds is not None
    assert len(found.seconds) == found.networks
    assert found.limit_ms is not None
    assert 2.0 <= found.limit_ms <= 9.5
    assert found.mape is not None
    assert found.mape < 0.5
    file = tmp_path / "pack.json"
    write_outcome(file, found, stage="pack")
    assert read_outcome(PackOutcome, file, stage="pack") == found


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("pace", [0.5, 2.0])
def test_the_length_of_every_search_follows_the_pace(tmp_path: Path, system: str, pace: float) -> None:
    planned, paced = (lengths(asked(tmp_path, system, pace=one)) for one in (1.0, pace))
    assert set(planned) == set(paced)
    for part, steps in planned.items():
        assert paced[part] == pytest.approx(pace * steps, abs=1), part


def lengths(found: SearchRecipe) -> dict[str, int]:
    """Steps of everything that a search trains."""
    strategy, evaluator = found.strategy, found.evaluator
    if isinstance(strategy, Gradient):
        before = strategy.pretraining
        return {"search": strategy.fit.total(1), **({"before": before.fit.total(1)} if before else {})}
    if isinstance(strategy, OneShot):
        return {"shared": strategy.fit.total(1)}
    if isinstance(evaluator, StagedEvaluator):
        assert evaluator.stage2 is not None
        return {"first": evaluator.stage1.total(1), "second": evaluator.stage2.total(1)}
    assert isinstance(evaluator, TrainEvaluator)
    return {"training": evaluator.fit.total(1)}


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_search_has_a_deadline_where_a_time_was_asked_for(tmp_path: Path, system: str) -> None:
    free, late = asked(tmp_path, system), asked(tmp_path, system, seconds=200.0)
    if isinstance(free.strategy, Gradient) and isinstance(late.strategy, Gradient):
        assert (free.strategy.fit.seconds, late.strategy.fit.seconds) == (None, 33.0)
    else:
        assert (free.seconds, late.seconds) == (None, 33.0)
        shared = isinstance(late.strategy, OneShot)
        assert shared or late.evaluator != free.evaluator  # a candidate has a deadline, too


@pytest.mark.parametrize(("pace", "drawn"), [(0.5, 1), (1.0, 2), (100.0, 20)])
def test_short_searches_judge_few_networks_in_the_end(tmp_path: Path, pace: float, drawn: int) -> None:
    found = asked(tmp_path, "squeezenas", pace=pace)
    assert isinstance(found.strategy, Gradient)
    assert found.strategy.choice.samples == drawn


def test_few_candidates_evolve_and_many_expand(tmp_path: Path) -> None:
    few, many = (asked(tmp_path, "lpsnet", candidates=count).strategy for count in (12, 60))
    assert few == Evolution(trials=12, population=4, children=2)
    assert isinstance(many, Expansion)
    assert many.steps == 6


@pytest.mark.parametrize("workers", [1, 3])
def test_a_controller_draws_as_many_networks_as_there_are_candidates(tmp_path: Path, workers: int) -> None:
    found = asked(tmp_path, "auxcells", candidates=7, workers=workers)
    assert isinstance(found.strategy, Controller)
    assert found.strategy.trials == 7
    assert found.strategy.batch >= workers
    assert isinstance(found.executor, Serial) if workers == 1 else found.executor == Processes(workers=3)


def test_a_system_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="lpsnet"):
        asked(tmp_path, "lpsnets")


def test_without_time_for_timing_networks_the_search_counts_multiply_accumulates(tmp_path: Path) -> None:
    plan = recipe()
    plan = replace(plan, effort=replace(plan.effort, fit_seconds=0.0))
    found = fit_prices(stage_context(tmp_path, recipe=plan))
    assert (found.fit, found.limit_ms, found.cost()) == (None, None, Macs())
    assert "multiply-accumulates" in found.reason

"""Prices fitted to whole networks: a known law is found again, errors are relative, prices add up."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import islice
from random import Random
from typing import Annotated

import pytest

from segtailor.core.codec import Tagged, adapter
from segtailor.core.cost import Cost
from segtailor.core.errors import UserError
from segtailor.core.plan import OpCall, Operator, Plan, Shape
from segtailor.core.registry import COSTS, SPACES
from segtailor.core.space import family
from segtailor.core.variation import sample
from segtailor.costs.fitted import US_PER_MS, FittedLatency, fit_latency, plan_work
from segtailor.costs.measured import distinct_architectures
from segtailor.costs.trust import MeasuredNetwork
from segtailor.costs.work import Work, work_of
from segtailor.ops import Conv, InvertedBottleneck, Resize

TARGET = "cpu/onnxruntime/fp32"
IMAGE = Shape(3, 64, 96)
LAW = Work(kernels=4.0, dense=20.0, pointwise=15.0, depthwise=60.0, moved=300.0, resized=900.0, joined=500.0)


def plans(number: int, *, space: str = "elastic", seed: int = 0) -> list[Plan]:
    """Return plans of random architectures: more of one seed begin with the same ones, which are made once."""
    known, others = drawn(space, seed)
    known += islice(others, max(0, number - len(known)))
    return known[:number]


@cache
def drawn(space: str, seed: int) -> tuple[list[Plan], Iterator[Plan]]:
    """Return the plans that were made so far, which is none, and an iterator over all others."""
    chosen = family(space)()
    return [], (chosen.plan(arch, IMAGE, 11) for arch in distinct_architectures(chosen, seed=seed))


def call(op: Operator, *inputs: Shape, channels: int) -> OpCall:
    return OpCall(op=op, inputs=inputs, channels=channels)


def timed(plan: Plan, *, factor: float = 1.0) -> MeasuredNetwork:
    """A network that follows the law, or takes longer by a factor."""
    low_ms = factor * plan_work(plan).times(LAW) / US_PER_MS
    return MeasuredNetwork("", plan, low_ms, low_ms)


@pytest.mark.slow
@pytest.mark.parametrize("space", ["elastic", "dilated_residual", "inverted_residual"])
def test_a_known_law_predicts_networks_that_were_not_timed(space: str) -> None:
    cost, trust = fit_latency([timed(plan) for plan in plans(20, space=space)], target=TARGET)
    assert trust.mape < 0.03
    assert trust.pearson > 0.99
    for plan in plans(10, space=space, seed=1):
        assert cost.of(plan) == pytest.approx(timed(plan).low_ms, rel=0.1)


def test_a_few_disturbed_networks_do_not_change_the_prices_of_others() -> None:
    networks = [timed(plan, factor=3.0 if number % 7 == 3 else 1.0) for number, plan in enumerate(plans(14))]
    cost, _ = fit_latency(networks, target=TARGET)
    for plan in plans(19)[14:]:
        assert cost.of(plan) == pytest.approx(timed(plan).low_ms, rel=0.02)


@pytest.mark.slow
def test_errors_are_relative_so_that_small_networks_count_as_much_as_large_ones() -> None:
    """All networks at twice the time of the law: prices double, whatever their sizes."""
    small, large = plans(12), plans(12, space="scalable_path")
    assert max(timed(plan).low_ms for plan in large) > 5 * min(timed(plan).low_ms for plan in small)
    cost, _ = fit_latency([timed(plan, factor=2.0) for plan in (*small, *large)], target=TARGET)
    for plan in (*small, *large):
        assert cost.of(plan) == pytest.approx(2 * timed(plan).low_ms, rel=0.15)


def test_few_networks_still_rank_others() -> None:
    cost, _ = fit_latency([timed(plan) for plan in plans(5)], target=TARGET)
    other = sorted(plans(15)[5:], key=lambda plan: timed(plan).low_ms)
    assert cost.of(other[0]) < cost.of(other[-1])
    with pytest.raises(UserError, match="too few"):
        fit_latency([timed(plan) for plan in plans(2)], target=TARGET)


def test_prices_are_not_negative_and_add_up_over_calls() -> None:
    cost, _ = fit_latency([timed(plan) for plan in plans(12)], target=TARGET)
    assert min(cost.us.numbers()) >= 0
    plan = plans(13)[-1]
    assert cost.of(plan) == pytest.approx(sum(cost.price(one) for one in plan.calls))


def test_it_is_a_cost_that_recipes_can_name() -> None:
    cost = FittedLatency(target=TARGET, us=LAW)
    tagged = adapter(Annotated[Cost, Tagged(COSTS)])  # type: ignore[arg-type]
    document = tagged.dump_python(cost, mode="json")
    assert document["kind"] == "fitted"
    assert document["us"]["depthwise"] == 60.0
    assert tagged.validate_python(document) == cost


@pytest.mark.parametrize(
    "prices", [{}, {"kernels": -1.0}, {"kernels": float("inf")}, {"dense": float("nan")}]
)
def test_prices_that_are_none_are_refused(prices: dict[str, float]) -> None:
    with pytest.raises(UserError, match="fit them again"):
        FittedLatency(target=TARGET, us=Work(**prices))


def test_work_is_that_of_the_deployed_form() -> None:
    dense = work_of(call(Conv(kernel=3), Shape(8, 16, 16), channels=4))
    assert dense == Work(kernels=1, dense=8 * 4 * 9 * 256 / 1e6, moved=(8 + 4) * 256 / 1e6)
    block = work_of(call(InvertedBottleneck(expansion=2), Shape(8, 16, 16), channels=8))
    assert (block.dense, block.pointwise) == (0.0, pytest.approx(2 * 8 * 16 * 256 / 1e6))
    assert block.depthwise == pytest.approx(16 * 9 * 256 / 1e6)
    resized = work_of(call(Resize(), Shape(8, 4, 4), Shape(8, 16, 16), channels=8))
    assert resized == Work(kernels=1, resized=8 * 256 / 1e6)


@pytest.mark.parametrize("space", SPACES.names())
def test_the_work_of_every_space_can_be_counted_and_agrees_with_its_multiply_accumulates(space: str) -> None:
    chosen = family(space)()
    plan = chosen.plan(sample(chosen, Random(0)), IMAGE, 11)
    work = plan_work(plan)
    assert work.kernels > 0
    macs = 1e6 * (work.dense + work.pointwise + work.depthwise)
    assert macs == pytest.approx(sum(one.macs() for one in plan.calls), rel=0.15)


def test_prices_scale_to_a_target_where_everything_takes_so_many_times_as_long() -> None:
    cost = FittedLatency(target="cuda/graph/fp16?tune=0", us=Work(dense=2.0, kernels=3.0))
    half = cost.scaled(0.5, target="cuda/graph/fp16")
    assert half.target == "cuda/graph/fp16"
    for plan in plans(3):
        assert half.of(plan) == pytest.approx(0.5 * cost.of(plan))

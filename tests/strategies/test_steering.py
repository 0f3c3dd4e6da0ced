"""The cost is led to the budget: not before it can move, along a path, and everything that counts pays."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from segtailor.core.strategy import Problem
from segtailor.costs import Macs
from segtailor.strategies.candidates import ArchitecturePrices
from segtailor.strategies.choosing import Choosing
from segtailor.strategies.gradient import GradientSearch
from segtailor.strategies.gradient_settings import Choice, CostTerm, Learning, Role
from segtailor.strategies.steering import DAMPING, MAX_PRESSURE, MAX_RELATIVE_ERROR, Descent, Steering
from tests.strategies.gradient_toys import ToyOps, problem, settings

GOOD, BAD = torch.tensor(False), torch.tensor(True)


def test_the_path_begins_when_everything_may_move_and_ends_half_way_through_the_rest() -> None:
    asked = []

    def cost() -> float:
        asked.append(None)
        return 16.0

    path = Descent(4.0, begins=0.2)
    assert path.goal(0.1, cost) is None
    goals = [path.goal(share, cost) for share in (0.2, 0.4, 0.6, 0.8, 1.0)]
    assert goals == pytest.approx([16.0, 8.0, 4.0, 4.0, 4.0])
    assert len(asked) == 1


def test_a_cost_within_the_budget_is_not_led_anywhere_else() -> None:
    path = Descent(4.0, begins=0.0)
    assert [path.goal(share, lambda: 3.0) for share in (0.0, 0.5, 1.0)] == [4.0, 4.0, 4.0]


def steered(cost: float, *, steps: int = 1, bad: torch.Tensor = GOOD) -> float:
    steering = Steering(torch.device("cpu"))
    steering.gain = 0.1
    for _ in range(steps):
        steering.towards(torch.tensor(10.0), torch.tensor(cost), bad=bad)
    return float(steering.factor())


def test_the_weight_follows_the_cost() -> None:
    assert steered(12.0) > 1 > steered(8.0)
    assert steered(10.0) == 1
    assert steered(12.0, steps=5) > steered(12.0)  # what is wrong for long builds up
    assert steered(1e9, steps=1000) <= 1.001 * math.exp(MAX_PRESSURE + DAMPING * MAX_RELATIVE_ERROR)


def test_a_bad_step_steers_nothing() -> None:
    assert steered(12.0, bad=BAD) == 1


def test_steering_is_remembered() -> None:
    first, second = (Steering(torch.device("cpu")) for _ in range(2))
    first.gain = 0.5
    first.towards(torch.tensor(1.0), torch.tensor(1.7), bad=GOOD)
    second.load(first.state())
    assert float(second.factor()) == float(first.factor())


def test_the_weight_rests_until_all_groups_learn() -> None:
    how = settings(steps=20, cost=CostTerm(adapt=20.0), learn=Learning(warmup=0.5), marks=20)
    job = GradientSearch(how, problem(limit=2e4))
    for _ in job.steps():
        pass
    weights = {int(row["step"]): row["cost_weight"] for row in job.trajectory}  # type: ignore[arg-type]
    assert all(weight == pytest.approx(0.1) for step, weight in weights.items() if step <= 10)
    assert weights[20] > 0.15  # type: ignore[operator]


def choosing(limit: float | None) -> tuple[Choosing, Problem]:
    asked = problem(ToyOps(blocks=3), limit=limit)
    supernet: Any = asked.space.supernet(asked.image, 2)  # type: ignore[attr-defined]
    return Choosing(asked, supernet, price=Macs().price, prices=ArchitecturePrices(asked)), asked


def test_every_draw_is_judged_in_a_form_within_the_budget() -> None:
    even = {f"block{index}": [0.25] * 4 for index in range(3)}
    free, asked = choosing(None)
    costs = sorted(asked.price(arch) for _, arch in free.shortlist(even, samples=40, seed=0))
    limit = costs[len(costs) // 3]
    bound, asked = choosing(limit)
    _, *drawn = (asked.price(arch) for _, arch in bound.shortlist(even, samples=40, seed=0))
    assert len(drawn) > 5
    assert max(drawn) <= limit
    unbound = [asked.price(arch) for _, arch in bound.shortlist(even, samples=40, seed=0, limited=False)]
    assert max(unbound) > limit  # a teacher has no budget


def test_what_is_given_up_for_the_budget_is_needed() -> None:
    limit = 150_000.0
    bound, asked = choosing(limit)
    rng = torch.Generator().manual_seed(0)
    for _ in range(20):
        rows = torch.rand(3, 4, generator=rng).softmax(dim=1).tolist()
        probabilities = {f"block{index}": row for index, row in enumerate(rows)}
        first = {name: max(range(4), key=row.__getitem__) for name, row in probabilities.items()}
        picks = bound.affordable(first, probabilities)
        assert asked.price(asked.space.architecture(picks)) <= limit
        for name in picks:
            if picks[name] != first[name]:
                undone = asked.space.architecture({**picks, name: first[name]})
                assert asked.price(undone) > limit


def test_a_role_that_pays_nothing_is_chosen_among_draws_beyond_the_budget() -> None:
    limit = 60_000.0
    roles = (Role(name="student"), Role(name="teacher", cost=0.0))
    how = settings(steps=4, roles=roles, choice=Choice(samples=12, recalibrate=1))
    job = GradientSearch(how, problem(ToyOps(blocks=3), limit=limit))
    for _ in job.steps():
        pass
    result: Any = job.result()
    costs = {
        "student": [trial["result"]["cost"] for trial in result["trials"][1:]],  # the first is the likeliest
        "teacher": [trial["result"]["cost"] for trial in result["roles"]["teacher"]["trials"]],
    }
    assert max(costs["student"]) <= limit < max(costs["teacher"])

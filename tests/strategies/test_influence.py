"""The shares of the latency term: balanced by how much each group of decisions can change the prices at hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from segtailor.core.plan import Plan, Shape
from segtailor.core.space import Decision
from segtailor.costs.pack import LatencyTable, shipped_pack
from segtailor.nets.relax import Weights
from segtailor.spaces.multi_resolution import MultiResolution
from segtailor.spaces.multi_resolution.supernet import RelaxedCost
from segtailor.spaces.networks import resolve
from segtailor.strategies.influence import balanced, influences
from segtailor.strategies.roles import Roles
from segtailor.systems import fasterseg

TOY = (
    Decision(name="a", options=("x", "y"), group="op"),
    Decision(name="b", options=("x", "y"), group="op"),
    Decision(name="c", options=(1, 2), group="width", ordered=True),
)
UNIFORM = {row.name: torch.full((2,), 0.5) for row in TOY}


def toy_cost(weights: Weights) -> Tensor:
    """Two operators of 1 or 4 and 2 or 3, times a width of 1 or 2."""
    ops = weights["a"] @ torch.tensor([1.0, 4.0]) + weights["b"] @ torch.tensor([3.0, 2.0])
    return ops * (weights["c"] @ torch.tensor([1.0, 2.0]))


def test_an_influence_is_the_gap_between_slowest_and_fastest_options() -> None:
    found = influences(TOY, UNIFORM, toy_cost, free=["a", "b", "c"])
    assert found == pytest.approx({"op": (7 - 3) * 1.5, "width": 5.0 * (2 - 1)})
    assert influences(TOY, UNIFORM, toy_cost, free=["a"]) == pytest.approx({"op": 3 * 1.5})


def test_shares_give_every_group_the_same_influence() -> None:
    changes = {"op": 10.42, "path": 0.01, "width": 5.54}  # Table 2 of the paper
    shares = balanced(changes)  # type: ignore[arg-type]
    assert sum(shares.values()) == pytest.approx(1)
    assert [round(shares[group], 3) for group in ("op", "path", "width")] == [0.001, 0.997, 0.002]
    assert balanced({"op": 2.0, "path": 0.0}) == {"op": 1.0, "path": 0.0}


def test_fasterseg_balances_its_shares_by_the_table_of_the_device() -> None:
    assert fasterseg.PAPER_STRATEGY.cost.shares == fasterseg.SMALL_STRATEGY.cost.shares == "balanced"
    grid = fasterseg.PAPER.space.grid  # type: ignore[attr-defined]
    relaxed, table = (
        RelaxedCost(grid, Shape(3, 1024, 2048)),
        LatencyTable(pack=shipped_pack("fasterseg-1080ti")),
    )
    roles = Roles(fasterseg.PAPER_STRATEGY, grid.decisions, seed=0, device=torch.device("cpu"))
    fixed = roles.fixed["student"]
    held = {name: row for name, row in roles.probabilities("student").items() if name in fixed}
    free = [row.name for row in grid.decisions if row.name not in fixed]
    changes = influences(
        grid.decisions, roles.neutral() | held, lambda rows: relaxed(rows, table.price), free=free
    )
    shares = balanced(changes)
    # 33 to 90 times what the released shares charge operators and widths
    assert [round(shares[group], 3) for group in ("op", "path", "width")] == [0.055, 0.818, 0.128]
    assert changes["width"] == pytest.approx(
        22.862088 - 10.703972, rel=1e-3
    )  # relaxed latency, ratios 12 and 4


def test_the_released_table_prices_networks_with_other_classes() -> None:
    table = LatencyTable(pack=shipped_pack("fasterseg-1080ti"))
    plans = {count: published_plan("fasterseg-student", count) for count in (11, 19, 40)}
    costs = {count: table.of(plan) for count, plan in plans.items()}
    assert costs[19] == pytest.approx(5.701836, rel=1e-4)
    assert costs[11] < costs[19] < costs[40]
    assert costs[40] - costs[11] < 0.5  # only the last 1x1 convolution differs


def published_plan(name: str, classes: int) -> Plan:
    """The plan of a published network at the size of Cityscapes."""
    plan: Plan = MultiResolution().plan(resolve(name), Shape(3, 1024, 2048), classes)
    return plan

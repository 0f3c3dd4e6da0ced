"""LPS-Net's Algorithm 1: the golden steps of the reference, guards, and growth of every family."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Any

import pytest

from segtailor.core.cost import Within
from segtailor.core.errors import InvalidArchitecture, UnknownName, Unsupported
from segtailor.core.plan import Plan, Shape
from segtailor.core.space import architecture_document
from segtailor.core.strategy import Candidate, Judged, Problem, SearchProblem, TrialResult
from segtailor.core.task import Task
from segtailor.core.variation import Growth, growth_of
from segtailor.spaces import published
from segtailor.spaces.inverted_residual import InvertedResidual
from segtailor.spaces.scalable_path import ScalablePath
from segtailor.strategies.candidates import ArchitecturePrices
from segtailor.strategies.expansion import MAX_GROWTH, Expansion, ExpansionState, Grower, distinct
from tests.strategies.planted import Channels, Planted, PlantedArchitecture, problem
from tests.support import FIXTURES

GOLDEN: list[dict[str, Any]] = json.loads((FIXTURES / "lps_expand_golden.json").read_text())["steps"]


@dataclass(frozen=True, kw_only=True)
class Macs:
    unit: str = "MACs"

    def of(self, plan: Plan) -> float:
        return plan.macs()


def cityscapes(space: Any, cost: Any = None) -> Problem:
    names = tuple(f"class {index}" for index in range(19))
    return Problem(
        space=space,
        cost=cost or Macs(),
        objective=Within(limit=math.inf),
        task=Task(classes=names),
        image=Shape(3, 1024, 2048),
    )


def judged(candidate: Candidate, quality: float | None, number: int = 0) -> Judged:
    status = "failed" if quality is None else "done"
    return Judged(candidate=candidate, result=TrialResult(id=number, status=status, quality=quality))


def vector(place: Any, dimension: str) -> list[Fraction]:
    return [Fraction(value) for name, value in place.items() if name.startswith(dimension)]


@pytest.mark.parametrize("step", GOLDEN, ids=lambda step: f"step{step['parent_step']}")
def test_all_ten_operations_of_a_published_step_equal_the_golden_ones(step: dict[str, Any]) -> None:
    space = ScalablePath()
    growth = space.growth()
    grower = Grower(growth=growth, prices=ArchitecturePrices(cityscapes(space)))
    place = growth.locate(published(f"lpsnet-step{step['parent_step']}"))
    assert grower.prices(growth.build(place)) == step["parent_macs"]
    assert grower.target(place) == step["target_macs"]
    children = grower.children(place)
    for child, expected in zip(children, step["ops"], strict=True):
        assert child.k == expected["k"], child.direction
        assert child.candidate.cost == expected["macs"]
        assert vector(child.place, expected["dimension"]) == [Fraction(value) for value in expected["result"]]
    assert len(distinct(children)) == step["unique_children"]


def test_ratios_keep_their_positions_while_growing_and_are_sorted_when_built() -> None:
    growth = ScalablePath().growth()
    place = growth.locate(published("lpsnet-s"))
    moved = growth.move(place, growth.directions[-1], 3)
    assert [moved[f"resolution{path}"] for path in range(3)] == [
        Fraction(3, 4),
        Fraction(1, 4),
        Fraction(3, 8),
    ]
    assert growth.build(moved).resolution == (Fraction(3, 4), Fraction(3, 8), Fraction(1, 4))


def test_expansion_starts_from_the_published_first_network() -> None:
    growth = ScalablePath().growth()
    assert growth.build(growth.start) == published("lpsnet-step0")


def grown(qualities: dict[int, float | None], **settings: Any) -> tuple[ExpansionState, list[Judged]]:
    """Run one step on the planted space with given qualities by child; the parent has quality 0."""
    asked = problem(**settings)
    state = ExpansionState(Expansion(steps=1), asked, ArchitecturePrices(asked))
    state.tell([judged(item, 0.0) for item in state.ask()])
    results = [judged(item, qualities.get(index, 0.0), 1 + index) for index, item in enumerate(state.ask())]
    state.tell(results)
    return state, results


def test_the_child_with_the_largest_gain_per_cost_is_the_next_parent() -> None:
    state, results = grown({0: 0.1, 3: 0.3, 5: 0.2})
    slopes = [item.quality / (item.cost - 6) for item in results]
    family: Any = state.summary()["family"]
    assert family[1]["trial"] == 1 + slopes.index(max(slopes))
    assert family[1]["slope"] == pytest.approx(max(slopes))


def test_of_equal_slopes_the_first_direction_wins() -> None:
    state, results = grown({})
    family: Any = state.summary()["family"]
    assert [item.cost for item in results] == [10, 10, 9, 10, 10, 9]  # one step of the dearest costs 4 more
    assert family[1]["direction"] == "d0"


def test_failed_candidates_are_never_chosen_but_do_not_end_a_step() -> None:
    state, _ = grown({0: None, 1: None, 2: -0.5, 3: None, 4: None, 5: None})
    family: Any = state.summary()["family"]
    assert family[1]["direction"] == "d2"


def test_a_step_of_which_all_candidates_fail_says_so() -> None:
    with pytest.raises(SearchProblem, match=r"all 6 candidates of step 1 failed, most often with: failed"):
        grown(dict.fromkeys(range(6)))


@pytest.mark.parametrize(("target", "k"), [(7.5, 2), (8, 2), (8.4, 2), (8.5, 3), (9, 3)])
def test_ties_go_to_the_larger_k(target: float, k: int) -> None:
    growth = growth_of(Planted(), Random(0))
    grower = Grower(growth=growth, prices=ArchitecturePrices(problem()))
    child = grower.reach(growth.start, growth.directions[0], target)  # costs 7, 8, 9, ...
    assert child is not None
    assert child.k == k


@dataclass(frozen=True, kw_only=True)
class Odd:
    """A cost that misbehaves where the first decision has grown."""

    value: float
    unit: str = "ms"

    def of(self, plan: Plan) -> float:
        return Channels().of(plan) if plan.nodes[0].channels == 1 else self.value


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 0.0, 6.0])
def test_a_direction_without_a_usable_price_is_left_out(value: float) -> None:
    base = problem()
    asked = Problem(**{**vars(base), "cost": Odd(value=value)})
    state = ExpansionState(Expansion(steps=1), asked, ArchitecturePrices(asked))
    state.tell([judged(item, 0.0) for item in state.ask()])
    names = [item.origin["direction"] for item in state.ask()]
    assert names == ["d1", "d2", "d3", "d4", "d5"]


def test_a_latency_that_never_rises_ends_the_loop_and_the_search() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Flat:
        unit: str = "ms"

        def of(self, plan: Plan) -> float:
            return 3.0 + 0 * len(plan.nodes)

    asked = cityscapes(ScalablePath(), Flat())
    prices = ArchitecturePrices(asked)
    state = ExpansionState(Expansion(), asked, prices)
    state.tell([judged(item, 0.0) for item in state.ask()])
    with pytest.raises(SearchProblem, match="no direction gives a network that can be built and costs more"):
        state.ask()
    assert len(prices.known) <= 10 * MAX_GROWTH


def test_growth_ends_quietly_when_everything_is_at_its_top() -> None:
    asked = problem(space=Planted(options=2, decisions_count=2))
    state = ExpansionState(Expansion(steps=10), asked, ArchitecturePrices(asked))
    sizes = []
    while batch := state.ask():
        sizes.append(len(batch))
        state.tell([judged(item, 0.0) for item in batch])
    assert sizes == [1, 2, 1]


def test_no_child_exceeds_the_budget() -> None:
    asked = problem(limit=11.0)
    state = ExpansionState(Expansion(steps=9), asked, ArchitecturePrices(asked))
    while batch := state.ask():
        assert all(item.cost <= 11 for item in batch)
        state.tell([judged(item, item.cost / 100) for item in batch])
    assert max(member["cost"] for member in state.summary()["family"]) == 11  # type: ignore[index,union-attr,call-overload]


@pytest.mark.parametrize(("steps", "limit", "told"), [(1, 11.0, True), (9, 11.0, False), (1, None, False)])
def test_growth_that_ends_far_below_the_budget_says_so(steps: int, limit: float | None, told: bool) -> None:
    asked = problem(limit=limit)
    state = ExpansionState(Expansion(steps=steps), asked, ArchitecturePrices(asked))
    while batch := state.ask():
        state.tell([judged(item, item.cost / 100) for item in batch])
    warnings: Any = state.summary()["warnings"]
    assert [f"after {steps} step(s) at" in text and "of 11 ch" in text for text in warnings] == [True] * told


def test_a_budget_below_the_start_says_what_the_cheapest_costs() -> None:
    asked = problem(limit=2.0)
    with pytest.raises(SearchProblem, match=r"no architecture within 2 ch.*costs 6 ch"):
        ExpansionState(Expansion(), asked, ArchitecturePrices(asked)).ask()


def test_expansion_can_start_from_any_architecture_of_the_space() -> None:
    start = architecture_document(PlantedArchitecture(picks=(1, 2, 3, 1, 0, 0)))
    asked = problem()
    (first,) = ExpansionState(Expansion(start=start), asked, ArchitecturePrices(asked)).ask()
    assert first.architecture.picks == (1, 2, 3, 1, 0, 0)


def test_a_space_that_cannot_grow_is_refused_with_the_remedy() -> None:
    with pytest.raises(Unsupported, match=r"no ordered decision.*Use evolution, random or controller"):
        Expansion().check(problem(space=Planted(ordered=False)))


@pytest.mark.parametrize("frame", ["small", "large", "xlarge"])
def test_inverted_residuals_grow_from_cheap_to_the_largest_candidates(frame: Any) -> None:
    growth = InvertedResidual(frame=frame).growth()
    assert set(growth.build(growth.start).blocks) == {"k3_d1_e1_g2"}
    place = growth.start
    for direction in growth.directions:
        place = growth.move(place, direction, 9)
    assert set(growth.build(place).blocks) == {"k5_d1_e6_g1"}


@pytest.mark.parametrize("name", ["squeezenas-mac-small", "squeezenas-lat-large"])
def test_published_inverted_residuals_are_located_exactly(name: str) -> None:
    arch = published(name)
    growth: Growth = InvertedResidual(frame=arch.frame).growth()
    assert growth.build(growth.locate(arch)) == arch


def test_an_architecture_with_too_many_paths_cannot_be_located() -> None:
    with pytest.raises(InvalidArchitecture, match="2 paths; this space allows 1"):
        ScalablePath(paths=1).growth().locate(published("lpsnet-s"))


def test_growth_can_be_limited_to_single_dimensions() -> None:
    asked = cityscapes(ScalablePath())
    every = ["depth", "width", "resolution"]
    for dimension in every:
        growth = Expansion(directions=(dimension,)).growth(asked)
        assert {direction.name.split()[0] for direction in growth.directions} == {dimension}
        state = ExpansionState(Expansion(directions=(dimension,)), asked, ArchitecturePrices(asked))
        state.tell([judged(item, 0.0) for item in state.ask()])
        assert all(str(item.origin["direction"]).startswith(dimension) for item in state.ask())
    whole = Expansion().growth(asked).directions
    assert Expansion(directions=tuple(every)).growth(asked).directions == whole
    with pytest.raises(UnknownName, match=r"'dept'.*did you mean 'depth'"):
        Expansion(directions=("dept",)).growth(asked)


def test_a_step_in_one_dimension_is_as_large_as_in_all() -> None:
    asked = cityscapes(ScalablePath())
    whole = ExpansionState(Expansion(), asked, ArchitecturePrices(asked))
    whole.tell([judged(item, 0.0) for item in whole.ask()])
    children = {item.origin["direction"]: item for item in whole.ask()}
    for dimension in ("depth", "width", "resolution"):
        state = ExpansionState(Expansion(directions=(dimension,)), asked, ArchitecturePrices(asked))
        state.tell([judged(item, 0.0) for item in state.ask()])
        for item in state.ask():
            assert item == children[item.origin["direction"]]


def test_a_step_without_gain_is_told() -> None:
    asked = problem()
    state = ExpansionState(Expansion(steps=2), asked, ArchitecturePrices(asked))
    for quality in (0.5, 0.4, 0.6):
        state.tell([judged(item, quality) for item in state.ask()])
    warnings: Any = state.summary()["warnings"]
    assert len(warnings) == 1
    assert warnings[0].startswith("step 1: no direction gained quality")
    assert "-0.1000" in warnings[0]

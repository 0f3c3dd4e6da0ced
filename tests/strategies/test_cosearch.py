"""Search of a student with its teacher: passes, roles, pretraining, latency term, choice, and a planted answer."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from segtailor.core.errors import Unsupported
from segtailor.core.space import parse_architecture
from segtailor.core.strategy import SearchProblem
from segtailor.spaces.multi_resolution.architecture import MultiResolutionArchitecture
from segtailor.spaces.multi_resolution.grid import OPTIONS
from segtailor.spaces.multi_resolution.supernet import MultiResolutionSettings
from segtailor.strategies.gradient import GradientSearch
from segtailor.strategies.gradient_settings import (
    Choice,
    CostTerm,
    Gradient,
    Learning,
    LogitOptimiser,
    Pass,
    Role,
)
from segtailor.systems import fasterseg
from tests.strategies.cosearch_toys import ONE_WIDTH, SPACE, PlantedDevice, problem, settings, striped


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def search() -> GradientSearch:
    return GradientSearch(settings(), problem())


def noise(job: GradientSearch) -> torch.Tensor:
    return job._engine.roles.noise(seed=0, images=None)


def drawn(job: GradientSearch, role: str, widths: Any = "own") -> dict[str, list[float]]:
    soft = job._engine.roles.draw(role, noise=noise(job), temperature=1.0, images=None, widths=widths)
    return {name: row.tolist() for name, row in soft.items()}


def test_a_role_fixes_its_frame_and_the_teacher_all_widths(search: GradientSearch) -> None:
    student, teacher = drawn(search, "student"), drawn(search, "teacher")
    assert student["frame"] == [1, 0]
    assert teacher["frame"] == [0, 1]
    names = [name for name in student if name.startswith("width")]
    assert all(teacher[name] == [0, 1] for name in names)
    assert {tuple(student[name]) for name in names} == {(0, 1), (1, 0)}  # hard draws of both
    assert all(0.19 < value < 0.21 for value in student["op3_16"])  # operators without noise


@pytest.mark.parametrize(("widths", "row"), [("least", [1, 0]), ("most", [0, 1])])
def test_passes_replace_widths_but_never_the_frame(
    search: GradientSearch, widths: Any, row: list[int]
) -> None:
    for role, frame in (("student", [1, 0]), ("teacher", [0, 1])):
        found = drawn(search, role, widths)
        assert found["frame"] == frame
        assert all(found[name] == row for name in found if name.startswith("width"))


def test_random_widths_are_uniform_and_definite(search: GradientSearch) -> None:
    rows = []
    for seed in range(30):
        fresh = search._engine.roles.noise(seed=seed, images=None)
        soft = search._engine.roles.draw(
            "teacher", noise=fresh, temperature=1.0, images=None, widths="random"
        )
        rows += [row.tolist() for name, row in soft.items() if name.startswith("width")]
    assert {tuple(row) for row in rows} == {(1, 0), (0, 1)}
    assert 0.4 < sum(row[0] for row in rows) / len(rows) < 0.6


def test_what_is_never_chosen_is_searched_all_the_same(search: GradientSearch) -> None:
    roles = search._engine.roles
    assert roles.probabilities("teacher")["op0_8"][0] > 0
    assert roles.to_choose("teacher")["op0_8"][0] == 0
    assert roles.to_choose("student")["op0_8"][0] > 0


@pytest.mark.parametrize("shares", ["given", "balanced"])
def test_the_latency_term_is_the_sum_of_three_decoupled_ones(shares: Any) -> None:
    own_cost = fasterseg.SMALL_STRATEGY.cost
    search = GradientSearch(settings(cost=replace(own_cost, shares=shares)), problem())
    engine = search._engine
    released = {"op": 0.002, "path": 0.994, "width": 0.004}
    parts = released if shares == "given" else engine.shares
    soft = engine.roles.draw("student", noise=noise(search), temperature=1.0, images=None)
    own = {name: row.detach() for name, row in soft.items()}
    neutral = engine.roles.neutral() | {"frame": own["frame"]}
    wanted = 0.0
    for group, share in parts.items():
        rows = {
            d.name: own[d.name] if d.group == group else neutral[d.name] for d in engine.supernet.decisions
        }
        wanted += share * float(engine.supernet.searched_cost(rows, engine.price) / engine.reference)
    role = engine.settings.roles[0]
    assert engine._cost_term(role, soft).item() == pytest.approx(wanted, rel=1e-5)


@pytest.mark.slow
def test_the_teacher_pays_nothing_and_the_student_once() -> None:
    heavy = settings(cost=CostTerm(weight=1e3, of="sampled", others="neutral"))
    moved = {}
    for name, how in (("heavy", heavy), ("free", replace(heavy, cost=replace(heavy.cost, weight=0.0)))):
        job = GradientSearch(how, problem())
        batch = job._other.at(0)
        job._engine.step(batch, number=1, temperature=1.0, rate=None, learning={"op", "path", "width"})
        moved[name] = {key: row.clone() for key, row in job._engine.roles.state().items()}
    same = [key for key in moved["free"] if torch.equal(moved["free"][key], moved["heavy"][key])]
    assert {key.split(".")[0] for key in set(moved["free"]) - set(same)} == {"student"}


@pytest.mark.slow
def test_a_step_for_logits_leaves_weights_alone_and_trains_them_again_afterwards(
    search: GradientSearch,
) -> None:
    engine = search._engine
    before = {name: value.clone() for name, value in engine.module.named_parameters()}
    engine.step(search._other.at(0), number=7, temperature=1.0, rate=None, learning={"op"})
    for name, value in engine.module.named_parameters():
        assert torch.equal(value, before[name]), name
        assert value.requires_grad
    engine.step(search._fit.at(0), number=8, temperature=1.0, rate=0.1, learning=set())
    changed = [
        name for name, value in engine.module.named_parameters() if not torch.equal(value, before[name])
    ]
    for part in ("stems.0", "stems.1", "ends.0", "ends.1", "cells"):
        assert any(name.startswith(part) for name in changed), part


@pytest.mark.slow
def test_a_step_that_never_waits_equals_the_plain_one() -> None:
    losses = []
    for fast in (False, True):
        supernet = MultiResolutionSettings(
            fused=fast, masked=fast, matrices=fast, width_gradient="norms" if fast else "score"
        )
        how = settings(supernet=supernet, record=fast)
        job = GradientSearch(how, problem())
        own = []
        for number, rate in ((1, None), (2, 0.01)):
            learning: Any = {"op", "path"} if rate is None else set()
            job._engine.step(job._other.at(0), number=number, temperature=1.0, rate=rate, learning=learning)
            own.append(job._engine.report().loss)
        losses.append(own)
    assert losses[1] == pytest.approx(losses[0], rel=0.01)  # norms over few pixels make much of rounding


@pytest.mark.slow
def test_pretraining_trains_both_sets_and_no_logits() -> None:
    job = GradientSearch(settings(ahead=2), problem())
    before = {name: value.clone() for name, value in job._engine.module.named_parameters()}
    logits = {name: value.clone() for name, value in job._engine.roles.state().items()}
    phases = []
    for step in job.steps():
        phases.append(step.phase)
        if step.done == 2:
            break
    assert set(phases) == {"pretrain"}
    changed = [
        name for name, value in job._engine.module.named_parameters() if not torch.equal(value, before[name])
    ]
    assert {name.rsplit(".", 3)[0][:7] for name in changed if name.startswith("stems")} >= {
        "stems.0",
        "stems.1",
    }
    assert all(torch.equal(value, logits[name]) for name, value in job._engine.roles.state().items())


@pytest.mark.parametrize(
    ("costs", "factor"),
    [((80.0, 120.0), 0.5), ((95.0, 100.0), 2.0), ((95.0, 99.0), 1.0), ((101.0, 300.0), 2.0)],
)
def test_the_window_halves_for_the_fast_and_doubles_for_the_slow(
    costs: tuple[float, float], factor: float
) -> None:
    how = settings(cost=CostTerm(weight=0.5, window=(0.9, 1.0)))
    engine = GradientSearch(how, problem())._engine
    engine.steering.into((0.9, 1.0), [cost / 100 for cost in costs])
    assert float(engine.cost_weight()) == pytest.approx(0.5 * factor)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [("pretrain", 1), ("search", 1)])
def test_a_stopped_search_ends_as_if_nothing_had_happened(stop: tuple[str, int], tmp_path: Path) -> None:
    how, asked = settings(steps=2, ahead=2), problem(limit=3e6)
    whole, first, second = (GradientSearch(how, asked) for _ in range(3))
    for _ in whole.steps():
        pass
    for step in first.steps():
        if (step.phase, step.done) == stop:
            break
    first.save(tmp_path)
    second.load(tmp_path)
    for _ in second.steps():
        pass
    assert second.result() == whole.result()


def test_the_budget_binds_who_pays_for_cost(search: GradientSearch) -> None:
    object.__setattr__(search._problem, "limit", 1.0)  # nothing is that cheap
    try:
        for role, met in (("student", False), ("teacher", True)):
            candidates = [arch for _, arch in search._shortlist(role)]
            costs = [search._prices(arch) for arch in candidates]
            dearest = costs.index(max(costs))
            qualities = [0.9 if index == dearest else 0.1 for index in range(len(costs))]
            found = search._choosing.outcome(candidates, qualities, limited=search._pays(role))
            assert found["met"] is met
            assert found["cost"] == (max(costs) if met else min(costs))
    finally:
        object.__setattr__(search._problem, "limit", None)


@pytest.mark.slow
def test_a_search_chooses_student_and_teacher_by_the_supernets_own_outputs() -> None:
    job = GradientSearch(settings(steps=4, ahead=4, judge_every=2), problem())
    for _ in job.steps():
        pass
    found: dict[str, Any] = dict(job.result())
    assert [len(found["trials"]), len(found["roles"]["teacher"]["trials"])] == [2, 2]
    student = parse_architecture(found["architecture"])
    teacher = parse_architecture(found["roles"]["teacher"]["architecture"])
    assert isinstance(student, MultiResolutionArchitecture)
    assert [student.stem_ratio, teacher.stem_ratio] == [1, 2]
    assert all(len(branch) == SPACE.layers for branch in teacher.branches)  # nothing is skipped
    scores = [trial["result"]["quality"] * trial["result"]["cost"] ** -0.07 for trial in found["trials"]]
    assert found["trial"] == scores.index(max(scores))
    assert 0 <= found["quality"] <= 1


def planted_settings() -> Gradient:
    """Short and cheap: the student alone, one pass, a latency term that outweighs the noise of such tiny maps."""
    return settings(
        steps=12,
        ahead=0,
        roles=(Role(name="student", fixed={"frame": 0}),),
        passes=(Pass(role="student"),),
        logits=LogitOptimiser(lr=0.5),
        cost=CostTerm(weight=1e5, of="sampled", others="neutral"),
        groups={
            "op": Learning(relaxation="softmax", cost=1.0),
            "path": Learning(relaxation="softmax", cost=1.01),
            "width": Learning(hard=True, cost=0.99),
        },
        marks=2,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_planted_network_is_found() -> None:
    hits = 0
    for seed in range(10):
        device = PlantedDevice(seed=seed)
        job = GradientSearch(planted_settings(), problem(cost=device, seed=seed))
        for _ in job.steps():
            pass
        branches = parse_architecture(job.result()["architecture"]).branches
        operators = {cell.operator for branch in branches for cell in branch}
        ratios = {cell.ratio for branch in branches for cell in branch[:-1]}
        hits += operators == {device.operator} and ratios == {device.ratio}
    assert hits >= 9


ZOOMED = [OPTIONS.index(name) for name in ("zoomed_conv", "zoomed_conv_2x")]


def finest_operators(side: int, *, seed: int) -> list[list[float]]:
    """Search on stripes of a width; return the distribution over operators of every cell at the finest rate."""
    own = settings(
        steps=80,
        ahead=0,
        roles=(Role(name="student", fixed={"frame": 0}),),
        passes=(Pass(role="student"),),
        logits=LogitOptimiser(lr=0.1),
        cost=CostTerm(weight=0.03),
        groups={name: Learning(relaxation="softmax", warmup=0.3) for name in ("op", "path")},
        marks=2,
    )
    fit = replace(own.fit, optimiser="adamw", lr=0.02, weight_decay=0.0, batch=4, clip=5.0)
    job = GradientSearch(replace(own, fit=fit), striped(side, seed=seed))
    for _ in job.steps():
        pass
    found = job.probabilities["student"]
    return [row for name, row in found.items() if name.startswith("op") and name.endswith("_8")]


def share_of_zoomed(rows: list[list[float]]) -> float:
    return sum(row[option] for row in rows for option in ZOOMED) / len(rows)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_operators_that_the_data_needs_are_found_against_the_price() -> None:
    """Stripes as narrow as a pixel of the finest maps are lost at half resolution, which the device prefers.

    Settings and criterion were found on seeds 0 to 9; these had not been seen.
    """
    hits = 0
    for seed in range(10, 20):
        rows = finest_operators(8, seed=seed)
        assert len(rows) == ONE_WIDTH.layers
        sharp = sum(row.index(max(row)) not in ZOOMED for row in rows)
        hits += share_of_zoomed(rows) < 0.25 and sharp >= 6
    assert hits >= 9
    plain = [
        share_of_zoomed(finest_operators(64, seed=seed)) for seed in (12, 13)
    ]  # one stripe: nothing to lose
    assert min(plain) > 0.4


def test_bad_settings_are_refused_with_a_remedy() -> None:
    with pytest.raises(SearchProblem, match="no role 'pupil'"):
        settings(passes=(Pass(role="pupil"),))
    with pytest.raises(SearchProblem, match="neither decision nor group"):
        GradientSearch(settings(roles=(Role(name="student", fixed={"speed": 1}),), passes=()), problem())
    with pytest.raises(SearchProblem, match="there are 2"):
        GradientSearch(settings(roles=(Role(name="student", fixed={"frame": 2}),), passes=()), problem())
    with pytest.raises(SearchProblem, match="lower < upper"):
        CostTerm(window=(1.0, 0.9))
    with pytest.raises(SearchProblem, match="one of them"):
        CostTerm(window=(0.9, 1.0), adapt=0.1)
    with pytest.raises(Unsupported, match="masked"):
        settings(record=True, supernet=MultiResolutionSettings(masked=False, width_gradient="score"))
    with pytest.raises(Unsupported, match="samples to 0"):
        GradientSearch(settings(choice=Choice(samples=3)), problem())
    steered = settings(cost=CostTerm(adapt=0.02), supernet=MultiResolutionSettings(masked=True), record=True)
    with pytest.raises(Unsupported, match=r"steer by cost\.window"):
        GradientSearch(steered, problem(limit=3e6))
    with pytest.raises(SearchProblem, match=r"choice\.scale"):
        Choice(scale=math.nan)

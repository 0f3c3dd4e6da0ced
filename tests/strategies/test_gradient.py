"""Gradient search finds planted answers, resumes to the bit, and says what is wrong before or at the step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from segtailor.core.cost import Within
from segtailor.core.errors import DataProblem, MissingCost, RunProblem, Unsupported, UserError
from segtailor.core.plan import OpCall, Plan, Shape
from segtailor.core.registry import STRATEGIES
from segtailor.core.space import parse_architecture
from segtailor.core.strategy import Halves, SearchProblem
from segtailor.costs import Macs
from segtailor.nets.supernet import SupernetSettings
from segtailor.strategies.gradient import GradientSearch
from segtailor.strategies.gradient_settings import (
    Choice,
    CostTerm,
    Gradient,
    Learning,
    LogitOptimiser,
    Role,
    Temperature,
    cheapest,
)
from segtailor.testing import check_strategy
from segtailor.testing.supernets import check_supernet
from segtailor.training.settings import FitSettings
from tests.strategies.gradient_toys import OPTIONS, ToyDepth, ToyOps, halves, problem, settings
from tests.strategies.planted import Planted


def finished(strategy: Gradient, asked: Any) -> GradientSearch:
    job = GradientSearch(strategy, asked)
    for _ in job.steps():
        pass
    return job


def found(job: GradientSearch) -> Any:
    return parse_architecture(job.result()["architecture"])


def recorded(job: GradientSearch, name: str, *, role: str = "student") -> list[Any]:
    rows: Sequence[Any] = job.trajectory
    return [row["roles"][role][name] for row in rows]


def test_toy_supernets_satisfy_the_invariants() -> None:
    check_supernet(ToyOps(), image=Shape(3, 12, 24))
    check_supernet(ToyDepth(), image=Shape(3, 12, 24))


def test_the_strategy_is_registered() -> None:
    assert STRATEGIES.get("gradient") is Gradient


# Planted problems: only a kernel of reach 3 can predict, so it must be found whatever it costs.


WARM = Learning(warmup=0.3)


def operators(strategy: Gradient) -> list[str]:
    return [found(finished(strategy, problem(seed=seed))).blocks[0] for seed in range(10)]


@pytest.mark.slow
@pytest.mark.parametrize("updates", ["joint", "alternating"])
def test_the_planted_operator_is_found_in_nine_of_ten_seeds(updates: Any) -> None:
    assert operators(settings(updates=updates, learn=WARM, steps=80)).count("conv3_d3") >= 9


@pytest.mark.slow
def test_the_planted_operator_is_found_where_unlikely_ones_do_not_run() -> None:
    assert operators(settings(mode="prune", learn=WARM, steps=100)).count("conv3_d3") >= 9


@pytest.mark.slow
def test_the_planted_operator_is_found_where_two_run_and_cost_counts() -> None:
    # As few candidates train at a time, weights need longer before logits move: 8 of 10 with 150 steps, WARM.
    how = settings(mode="pair", learn=Learning(warmup=0.5), steps=200, cost=CostTerm(weight=0.02))
    assert operators(how).count("conv3_d3") >= 9


@pytest.mark.parametrize("updates", ["joint", "alternating"])
def test_a_step_made_to_be_recorded_searches_like_any_other(updates: Any) -> None:
    how = settings(steps=6, updates=updates, learn=WARM, per_image=True)
    plain, made = (
        finished(replace(how, record=record), problem(ToyOps(blocks=2))) for record in (False, True)
    )
    assert plain.trajectory == made.trajectory
    assert plain.judged == made.judged


@pytest.mark.slow
def test_the_planted_operator_is_found_one_path_at_a_time() -> None:
    # Without cost: the gate of the only operator that runs has no gradient once its weights have converged, and
    # any cost then wins in the end.
    how = settings(mode="path", learn=Learning(warmup=0.5), steps=300, cost=CostTerm(weight=0.0))
    how = replace(how, supernet=SupernetSettings(affine=False))
    assert operators(how).count("conv3_d3") >= 9


@pytest.mark.slow
def test_the_planted_depth_is_found_in_nine_of_ten_seeds() -> None:
    how = settings(cost=CostTerm(weight=0.1, form="log"), learn=WARM, steps=100)
    depths = [found(finished(how, problem(ToyDepth(), shift=2, seed=seed))).depth for seed in range(10)]
    assert depths.count(2) >= 9


def test_the_planted_operator_wins_against_cheaper_ones() -> None:
    job = finished(settings(learn=WARM, steps=80), problem())
    assert found(job).blocks == ("conv3_d3",)
    assert job.result()["quality"] > 0.5


def test_where_nothing_is_to_be_learned_the_cost_alone_decides() -> None:
    job = finished(settings(cost=CostTerm(weight=1.0)), problem(shift=9))
    assert found(job).blocks in (("skip",), ("conv1",))


def test_a_large_cost_weight_makes_networks_shallow() -> None:
    how = settings(cost=CostTerm(weight=5.0, form="log"), steps=30)
    trace = recorded(finished(how, problem(ToyDepth(), shift=2)), "expected_depth1")
    assert trace[0] == pytest.approx(2.5)
    assert trace[-1] < 1.5
    assert trace == sorted(trace, reverse=True)


# Same seed, same search; stopped anywhere, same end.


@pytest.mark.parametrize("updates", ["joint", "alternating"])
def test_search_repeats_and_resumes_after_every_step(updates: Any, tmp_path: Path) -> None:
    how = settings(steps=4, updates=updates, marks=2, judge_every=1, choice=Choice(samples=3, recalibrate=1))
    check_strategy(how, problem(ToyOps(blocks=2)), tmp_path)


def test_state_is_equal_to_the_bit_after_resuming_with_removed_candidates(tmp_path: Path) -> None:
    how = settings(
        steps=12, marks=12, remove_below=0.2, per_image=True, cost=CostTerm(adapt=8.0), judge_every=5
    )
    asked = problem(ToyOps(blocks=2), limit=90_000.0)
    whole = finished(how, asked)
    assert whole.trajectory[-1]["candidates"] < 8  # type: ignore[operator]
    for stop in (3, 7, 11):
        first = GradientSearch(how, asked)
        for step in first.steps():
            if step.done == stop:
                break
        (folder := tmp_path / str(stop)).mkdir()
        first.save(folder)
        torch.rand(5)  # whatever else uses torch's generator must not matter
        second = GradientSearch(how, asked)
        second.load(folder)
        for _ in second.steps():
            pass
        assert second.result() == whole.result()
        for one, other in zip(tensors(whole), tensors(second), strict=True):
            assert torch.equal(one, other)


def tensors(job: GradientSearch) -> list[torch.Tensor]:
    engine = job._engine
    return [*engine.module.state_dict().values(), *engine.roles.state().values(), engine.steering.pressure]


def test_another_seed_is_another_search() -> None:
    one, other = (finished(settings(steps=4), problem(seed=seed)) for seed in (0, 1))
    assert one.trajectory != other.trajectory


def test_a_state_of_another_space_is_refused(tmp_path: Path) -> None:
    GradientSearch(settings(), problem(ToyOps(blocks=1))).save(tmp_path)
    with pytest.raises(RunProblem, match="another space"):
        GradientSearch(settings(), problem(ToyOps(blocks=2))).load(tmp_path)


# Schedules.


def test_groups_stay_frozen_through_their_own_warm_up() -> None:
    how = settings(steps=9, marks=9, learn=Learning(warmup=1 / 3))
    rows = [row["block0"] for row in recorded(finished(how, problem()), "probabilities")]
    assert rows[0] == rows[1] == rows[2] == rows[3] == [0.25] * len(OPTIONS)
    assert rows[4] != rows[3]


def test_weights_train_during_the_warm_up() -> None:
    job = GradientSearch(settings(steps=8, learn=Learning(warmup=0.5)), problem())
    before = [value.clone() for value in job._engine.module.parameters()]
    next(iter(job.steps()))
    after = list(job._engine.module.parameters())
    assert all(not torch.equal(one, other) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize(("epoch", "value"), [(0, 3.0), (75, 1.515), (149, 0.0498)])
def test_linear_temperature_has_the_values_of_the_specification(epoch: int, value: float) -> None:
    schedule = Temperature(start=3.0, end=0.03, shape="linear", per="epoch")
    for within in (0, 185):
        now = schedule.at(186 * epoch + within, total=150 * 186, per_epoch=186)
        assert now == pytest.approx(value, abs=1e-4)


def test_geometric_temperature_moves_at_every_step() -> None:
    schedule = Temperature(start=5.0, end=1.0)
    values = [schedule.at(done, total=100, per_epoch=10) for done in (0, 1, 50, 100)]
    assert values == pytest.approx([5.0, 5 * 5**-0.01, math.sqrt(5), 1.0])


# Cost terms.


def test_shares_per_group_scale_the_cost_gradient_of_that_group_alone() -> None:
    how = settings(steps=1, groups={"op": Learning(cost=0.0)}, cost=CostTerm(weight=100.0))
    engine = GradientSearch(how, problem())._engine
    noise = engine.roles.noise(seed=0, images=None)
    soft = engine.roles.draw("student", noise=noise, temperature=1.0, images=None)
    engine._cost_term(how.roles[0], soft).backward()  # type: ignore[no-untyped-call]
    assert not engine.roles.logits["student"]["block0"].grad.any()  # type: ignore[union-attr]


@pytest.mark.parametrize("form", ["linear", "log"])
@pytest.mark.parametrize("of", ["sampled", "probabilities"])
@pytest.mark.parametrize("whole", [False, True])
def test_every_form_of_the_cost_term_prefers_cheaper_options(form: Any, of: Any, whole: bool) -> None:
    how = settings(cost=CostTerm(weight=1.0, form=form, of=of, whole=whole))
    engine = GradientSearch(how, problem())._engine
    noise = engine.roles.noise(seed=0, images=None)
    soft = engine.roles.draw("student", noise=noise, temperature=1.0, images=None)
    engine._cost_term(how.roles[0], soft).backward()  # type: ignore[no-untyped-call]
    slope = engine.roles.logits["student"]["block0"].grad
    assert slope is not None
    assert slope[0] < 0 < slope[3]  # skip becomes likelier, the largest kernel less likely


@pytest.mark.slow
def test_an_adaptive_weight_brings_the_expected_cost_to_the_budget() -> None:
    limit, space = 120_000.0, ToyOps(blocks=3)
    free = finished(settings(steps=80, cost=CostTerm(weight=0.0)), problem(space))
    steered = settings(steps=80, cost=CostTerm(weight=0.1, adapt=20.0), marks=20)
    job = finished(steered, problem(space, limit=limit))
    assert recorded(free, "cost")[-1] > 1.25 * limit
    late = recorded(job, "cost")[-10:]
    assert 0.75 * limit < sum(late) / len(late) < 1.15 * limit
    assert job.result()["met"] is True
    assert job.result()["cost"] <= limit


def test_two_roles_share_the_supernet_and_only_one_pays() -> None:
    roles = (Role(name="student"), Role(name="teacher", cost=0.0))
    job = finished(settings(roles=roles, cost=CostTerm(weight=3.0)), problem())
    result: Any = job.result()
    assert found(job).blocks != ("conv3_d3",)
    assert parse_architecture(result["roles"]["teacher"]["architecture"]).blocks == ("conv3_d3",)
    assert recorded(job, "cost", role="teacher")[-1] > recorded(job, "cost")[-1]


def test_a_divided_batch_gives_the_same_gradient_on_the_logits() -> None:
    slopes = []
    for parts in (1, 4):
        how = settings()
        how = replace(how, fit=replace(how.fit, accumulate=parts))
        job = GradientSearch(how, problem())
        engine = job._engine
        engine.module.eval()  # norms of smaller batches differ otherwise
        noise = engine.roles.noise(seed=0, images=None)
        soft = engine.roles.draw("student", noise=noise, temperature=1.0, images=None)
        engine._backward(job._fit.at(0), how.roles[0], soft, turn=how.turns[0], learn=True)
        slopes.append(engine.roles.logits["student"]["block0"].grad)
    torch.testing.assert_close(slopes[0], slopes[1])


# Removal, choice, guards.


def test_unlikely_candidates_are_removed_and_their_probability_is_zero() -> None:
    job = finished(settings(remove_below=0.1, marks=20), problem())
    last = recorded(job, "probabilities")[-1]["block0"]
    left = job._engine.supernet.remaining()["block0"]
    assert 1 <= len(left) < len(OPTIONS)
    assert [value > 0 for value in last] == [option in left for option in range(len(OPTIONS))]
    assert found(job).blocks == ("conv3_d3",)


def test_sampled_architectures_are_judged_and_the_front_is_kept() -> None:
    how = settings(steps=20, choice=Choice(samples=12, recalibrate=1, images=4))
    result: Any = finished(how, problem(ToyOps(blocks=2))).result()
    assert len(result["trials"]) > 3
    costs = [item["cost"] for item in result["front"]]
    assert costs == sorted(costs)
    assert result["quality"] == max(item["result"]["quality"] for item in result["trials"])


def test_the_choice_keeps_to_the_budget_although_the_likeliest_does_not() -> None:
    limit = 60_000.0
    asked = problem(limit=limit, objective=Within(limit=limit))
    result: Any = finished(settings(cost=CostTerm(weight=0.0)), asked).result()
    assert result["cost"] <= limit
    assert result["met"] is True
    assert max(item["result"]["cost"] for item in result["trials"]) > limit


def test_a_budget_out_of_reach_of_what_is_left_is_told() -> None:
    asked = problem(limit=60_000.0)
    job = GradientSearch(settings(steps=2), asked)
    job._engine.remove([("block0", option) for option in (0, 1)])  # only kernels that cost too much stay
    messages = [step.message for step in job.steps() if step.message]
    assert [message for message in messages if "cost.adapt" in message] == messages[-1:]
    assert job.result()["met"] is False


def test_a_collapse_is_told_once_with_what_to_change() -> None:
    how = settings(cost=CostTerm(weight=200.0), logits=LogitOptimiser(lr=0.5), steps=40, marks=20)
    job = GradientSearch(how, problem(ToyOps(blocks=2)))
    messages = [step.message for step in job.steps() if step.message]
    assert len(messages) == 1
    assert "collapsed" in messages[0]
    assert "lower cost.weight" in messages[0]
    assert job.result()["warnings"] == messages


def test_a_network_of_idle_operators_is_told_although_the_search_is_undecided() -> None:
    job = GradientSearch(settings(steps=2, logits=LogitOptimiser(lr=0.01)), problem(ToyOps(blocks=3)))
    for row in job._engine.roles.logits["student"].values():
        row.data[OPTIONS.index("skip")] = 1.0  # likeliest, far from certain
    slow, told = [step.message for step in job.steps() if step.message]
    assert "collapsed: 3 of 3 decisions" in told
    assert job.result()["warnings"] == [slow, told]


def test_logits_too_slow_to_decide_anything_are_told_at_once() -> None:
    job = GradientSearch(settings(steps=10, logits=LogitOptimiser(lr=0.001)), problem())
    first, *rest = [step.message or "" for step in job.steps()]
    assert "Raise logits.lr to about 1," in first
    assert not any("logits.lr" in message for message in rest)


def test_steps_show_cost_entropy_and_held_out_quality() -> None:
    job = GradientSearch(settings(steps=8, marks=4, judge_every=2), problem())
    seen: set[str] = set()
    for step in job.steps():
        seen |= set(step.metrics)
    assert {"loss", "temperature", "cost", "entropy_op", "quality", "candidates", "cost_weight"} <= seen
    assert [row["step"] for row in job.trajectory] == [0, 2, 4, 6, 8]
    assert recorded(job, "entropy_op")[0] == pytest.approx(1.0)


def test_a_supernet_that_is_not_finite_stops_the_search_at_the_step() -> None:
    how = settings()
    job = GradientSearch(replace(how, fit=replace(how.fit, patience=3)), problem())
    steps = job.steps()
    next(steps)
    logits = {name: row.clone() for name, row in job._engine.roles.state().items()}
    with torch.no_grad():
        next(job._engine.module.parameters()).fill_(math.nan)
    with pytest.raises(SearchProblem, match=r"diverged.*step"):
        for _ in steps:
            pass
    for name, row in job._engine.roles.state().items():
        assert torch.equal(row, logits[name])  # a bad step changes nothing


def test_a_single_bad_step_is_skipped() -> None:
    job = GradientSearch(settings(steps=10), problem())
    engine, batch = job._engine, job._fit.at(0)
    before = [value.clone() for value in tensors(job)]
    bad = batch._replace(images=batch.images * math.nan)
    engine.step(bad, number=0, temperature=1.0, rate=0.1, learning={"op"})
    names = [*engine.module.state_dict(), "logits", "pressure"]
    for name, one, other in zip(names, before, tensors(job), strict=True):
        assert torch.equal(one, other) or name.endswith("num_batches_tracked"), name
    assert engine.report().skipped == 1


# Refusals, all before any work.


class Gappy(Macs):
    def price(self, call: OpCall) -> float:
        if getattr(call.op, "dilation", 1) == 3:
            raise MissingCost("the latency table has no entry for conv3_d3; calibrate.")
        return super().price(call)


class Endless(Macs):
    def price(self, call: OpCall) -> float:  # noqa: ARG002
        return math.inf


class WholeOnly:
    unit = "ms"

    def of(self, plan: Plan) -> float:  # noqa: ARG002
        return 1.0


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"cost": Gappy()}, MissingCost, "calibrate"),
        ({"cost": Endless()}, MissingCost, "finite"),
        ({"cost": WholeOnly()}, Unsupported, "latency table"),
        ({"space": Planted()}, Unsupported, "trial strategy"),
        ({"data": None}, Unsupported, "dataset"),
        ({"data": halves(shift=1, fit=1, judge=0)}, DataProblem, "at least 1"),
        ({"data": Halves(fit=(), judge=())}, DataProblem, "at least 1"),
        ({"limit": 10.0}, SearchProblem, "cheapest network"),
    ],
)
def test_bad_problems_are_refused_before_any_work(changes: Any, error: type, says: str) -> None:
    with pytest.raises(error, match=says):
        settings().check(problem(**changes))
    with pytest.raises(error, match=says):
        settings().job(problem(**changes))


def test_a_budget_of_exactly_the_cheapest_network_is_allowed() -> None:
    least, picks = cheapest(problem(ToyOps(blocks=2)))
    assert ToyOps(blocks=2).architecture(picks).blocks == ("skip", "skip")
    settings().check(problem(ToyOps(blocks=2), limit=least))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Temperature(start=0.0), "above 0"),
        (lambda: Temperature(end=-1.0), "above 0"),
        (lambda: Temperature(end=math.nan), "above 0"),
        (lambda: Learning(warmup=1.0), "share"),
        (lambda: CostTerm(weight=-1.0), "0 or more"),
        (lambda: CostTerm(weight=0.0, adapt=0.1), "start from"),
        (lambda: LogitOptimiser(lr=0.0), "above 0"),
        (lambda: Choice(samples=-1), "0 or more"),
        (lambda: settings(remove_below=0.7), "below 0.5"),
        (lambda: settings(roles=()), "at least one"),
        (lambda: settings(roles=(Role(name="a"), Role(name="a"))), "a different name"),
        (lambda: settings(marks=0), "marks"),
        (lambda: Gradient(fit=FitSettings(ema=0.9)), "fit.ema"),
        (lambda: Gradient(fit=FitSettings(precision="fp16")), "bf16"),
        (lambda: settings(cost=CostTerm(adapt=0.1)).check(problem()), "budget"),
        (lambda: settings(groups={"depth": Learning()}).check(problem()), "no 'depth'"),
    ],
)
def test_bad_settings_are_refused_with_a_remedy(make: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        make()


def test_an_unfinished_search_has_no_result() -> None:
    with pytest.raises(SearchProblem, match="resume"):
        GradientSearch(settings(), problem()).result()


def test_a_search_with_too_little_time_takes_fewer_steps_and_still_chooses(tmp_path: Path) -> None:
    plan = settings(steps=100_000)
    plan = replace(plan, fit=replace(plan.fit, seconds=1.0))
    job = GradientSearch(plan, problem(ToyOps()))
    steps = job.steps()
    first = next(steps)
    assert first.total is not None
    last = list(steps)[-1]
    assert last.phase.startswith("choose")
    assert job.result()["architecture"]
    told = job.trajectory[-1]["step"]
    assert isinstance(told, int)
    assert 1 <= told < 100_000
    job.save(tmp_path)
    again = GradientSearch(plan, problem(ToyOps()))
    again.load(tmp_path)
    assert list(again.steps()) == []
    assert again.result()["fingerprint"] == job.result()["fingerprint"]


def exits(frozen: Any, *, shift: int, gamma: float, seeds: int) -> list[int]:
    """Return the depths found where the label stands `shift` columns away: so many layers are needed to see it."""
    how = settings(
        steps=300,
        cost=CostTerm(weight=gamma, form="log"),
        temperature=Temperature(start=3.0, end=0.3),
        logits=LogitOptimiser(lr=0.05, betas=(0.5, 0.999)),
        groups={"depth": Learning(warmup=0.5, frozen=frozen)},
    )
    how = replace(how, fit=replace(how.fit, optimiser="adamw", lr=0.02, clip=5.0))
    searched = [finished(how, problem(ToyDepth(deepest=6), shift=shift, seed=seed)) for seed in range(seeds)]
    return [found(job).depth for job in searched]


@pytest.mark.slow
def test_exits_that_were_trained_alone_are_chosen_by_what_the_label_needs() -> None:
    # Right of ten seeds: 4 after mixtures, which end as deep as 6, and 8 after exits that were trained alone.
    drawn, uniform = (exits(how, shift=4, gamma=0.1, seeds=10).count(4) for how in ("drawn", "uniform"))
    assert drawn <= 5
    assert uniform >= 7


def test_a_frozen_group_runs_one_option_at_a_time_each_equally_often() -> None:
    how = settings(groups={"depth": Learning(warmup=0.5, frozen="uniform")})
    job = GradientSearch(how, problem(ToyDepth()))
    roles = job._engine.roles
    drawn = []
    for seed in range(200):
        noise = roles.noise(seed=seed, images=None)
        row = roles.draw("student", noise=noise, temperature=3.0, images=None, frozen={"depth"})["depth1"]
        assert sorted(row.tolist()) == [0, 0, 0, 1]
        drawn.append(int(row.argmax()))
        learning = roles.draw("student", noise=noise, temperature=3.0, images=None)["depth1"]
        assert 0 < float(learning.detach().max()) < 1  # once logits move, exits are mixed
    assert min(drawn.count(option) for option in range(4)) > 30
    roles.keep({"depth1": (0, 2)})
    noise = roles.noise(seed=1, images=5)
    rows = roles.draw("student", noise=noise, temperature=3.0, images=5, frozen={"depth"})["depth1"]
    assert rows.shape == (5, 4)
    assert set(rows.argmax(dim=1).tolist()) <= {0, 2}

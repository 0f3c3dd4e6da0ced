"""The controller: parity with the reference, planted problems, options, and what a resumed one still knows."""

from __future__ import annotations

import json
import shutil
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from segtailor.core.cost import Linear
from segtailor.core.errors import RunProblem
from segtailor.core.registry import SPACES
from segtailor.core.space import Decision
from segtailor.core.strategy import Judged, Problem, SearchProblem, TrialResult
from segtailor.spaces import published
from segtailor.spaces.decoder_cell import DecoderCell
from segtailor.strategies import Controller, RandomSearch
from segtailor.strategies.candidates import ArchitecturePrices
from segtailor.strategies.policy import ControllerPolicy, Experience, PolicyLearner, assign_heads, ppo_loss
from segtailor.strategies.saved_supernet import RemainingSpace
from segtailor.testing.strategies import check_strategy
from tests.strategies import planted
from tests.strategies.planted import Planted, best_within, problem, quality_of
from tests.support import FIXTURES

FACTS = json.loads((FIXTURES / "aux_controller_parity.json").read_text())
QUICK: dict[str, Any] = {"lr": 3e-3, "minibatch": 100, "batch": 10}
SMALL = Controller(trials=6, batch=2, hidden=8, layers=1, warmup=1, minibatch=4, lr=0.01)


def policy(decisions: Any, **options: Any) -> ControllerPolicy:
    return ControllerPolicy(decisions, generator=torch.Generator().manual_seed(0), **options)


def reference() -> ControllerPolicy:
    """Return the policy of the decoder's 19 decisions with the weights of the fixture."""
    found = policy(DecoderCell().decisions)
    heads = [f"conn_fcs.{i}" for i in range(6)] + ["linear_op"] + [f"ctx_fcs.{i}" for i in range(6)]
    state = {}
    for key in found.state_dict():
        name = "g_emb" if key == "start" else key
        if key.startswith("heads."):
            _, index, leaf = key.split(".")
            name = f"{heads[int(index)]}.{leaf}"
        shape = dict(map(tuple, FACTS["state"]))[name]
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        state[key] = torch.from_numpy((0.1 * rng.standard_normal(shape)).astype(np.float32))
    found.load_state_dict(state)
    return found


def actions_of(name: str) -> torch.Tensor:
    space = DecoderCell()
    picks = space.picks(published(f"auxcells-{name}"))
    return torch.tensor([[picks[decision.name] for decision in space.decisions]])


def test_the_decoder_has_the_decisions_of_the_reference_and_shares_one_head_of_operations() -> None:
    order, sizes = assign_heads(DecoderCell().decisions)
    assert [sizes[head] for head in order] == [item["vocab"] for item in FACTS["decisions"]]
    assert len(order) == 19
    assert len(sizes) == 13
    count = sum(parameter.numel() for parameter in reference().parameters())
    assert count == FACTS["num_params"] - 11 * 100  # the published embedding is never read


def test_logits_log_probability_and_entropy_equal_the_reference() -> None:
    net = reference()
    logits = net.logits(actions_of("arch0"))
    for found, wanted in zip(logits, FACTS["logits_per_decision"], strict=True):
        assert found[0].tolist() == pytest.approx(wanted, abs=2e-6)
    for name, wanted in FACTS["architectures"].items():
        scored = net(actions_of(name))
        assert scored.log_prob.item() == pytest.approx(wanted["log_prob"], rel=1e-6)
        assert scored.entropy.item() == pytest.approx(wanted["entropy"], rel=1e-6)


def test_loss_and_gradient_norm_of_ppo_equal_the_reference() -> None:
    check, net = FACTS["ppo_check"], reference()
    scored = net(actions_of(check["architecture"]))
    old = scored.log_prob.detach() - 0.05
    loss = ppo_loss(scored.log_prob, old, torch.tensor([check["advantage"]]), clip=check["clip"])
    assert loss.item() == pytest.approx(check["loss"], rel=1e-6)
    loss.backward()
    squares = [(p.grad**2).sum() for p in net.parameters() if p.grad is not None]
    assert torch.stack(squares).sum().sqrt().item() == pytest.approx(check["grad_global_l2_norm"], rel=1e-5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"), [(2.0, 1.0, False), (2.0, -1.0, True), (1.05, 1.0, True)]
)
def test_ppo_stops_pushing_where_the_ratio_has_left_the_clip(
    ratio: float, advantage: float, moves: bool
) -> None:
    log_prob = torch.tensor([np.log(ratio)], dtype=torch.float32, requires_grad=True)
    ppo_loss(log_prob, torch.zeros(1), torch.tensor([advantage]), clip=0.1).backward()
    assert log_prob.grad is not None
    assert bool(log_prob.grad.abs() > 0) == moves


def test_published_choices_are_independent_and_fed_back_ones_are_not() -> None:
    decisions = DecoderCell().decisions
    first, second = actions_of("arch0"), actions_of("arch1")
    assert all(map(torch.equal, policy(decisions).logits(first), policy(decisions).logits(second)))
    reading = policy(decisions, feedback=True)
    pairs = list(zip(reading.logits(first), reading.logits(second), strict=True))
    assert torch.equal(*pairs[0])  # nothing was chosen before
    assert not torch.equal(*pairs[-1])
    both = reading(torch.cat([first, second])).log_prob
    alone = torch.cat([reading(first).log_prob, reading(second).log_prob])
    torch.testing.assert_close(both, alone)


@pytest.mark.slow
@pytest.mark.parametrize("feedback", [False, True])
def test_a_draw_has_the_probability_that_it_says(feedback: bool) -> None:
    decisions = Planted(options=2, decisions_count=2).decisions
    net = policy(decisions, hidden=4, feedback=feedback)
    with torch.no_grad():
        net.heads[0].bias.copy_(torch.tensor([0.0, 1.0]))
    rng = torch.Generator().manual_seed(1)
    drawn = [net.sample(rng) for _ in range(200)]
    for item in drawn[:3]:
        assert item.log_prob == pytest.approx(net(torch.tensor([item.actions])).log_prob.item(), abs=1e-6)
    share = np.mean([item.actions[0] for item in drawn])
    assert share == pytest.approx(
        net.logits(torch.zeros((1, 2), dtype=torch.int64))[0].softmax(-1)[0, 1].item(), abs=0.09
    )


def test_the_baseline_starts_at_the_first_reward_and_the_first_lesson_teaches_nothing() -> None:
    learner = PolicyLearner(SMALL, Planted().decisions, seed=0)
    before = [parameter.clone() for parameter in learner.policy.parameters()]
    learner.learn(Experience((0,) * 6, -3.0, 0.4))
    assert learner.baseline == pytest.approx(0.4)
    assert all(map(torch.equal, before, learner.policy.parameters()))
    learner.learn(Experience((1,) * 6, -3.0, 0.8))
    assert learner.baseline == pytest.approx(0.95 * 0.4 + 0.05 * 0.8)
    assert not all(map(torch.equal, before, learner.policy.parameters()))


@pytest.mark.slow
def test_a_better_choice_becomes_more_likely() -> None:
    learner = PolicyLearner(replace(SMALL, lr=0.05), Planted(options=2, decisions_count=1).decisions, seed=0)
    before = learner.log_prob((1,))
    for _ in range(30):
        actions, log_prob = learner.draw()
        learner.learn(Experience(actions, log_prob, float(actions[0])))
    assert learner.log_prob((1,)) > before
    assert learner.log_prob((1,)) > np.log(0.9)


@pytest.mark.slow
def test_an_entropy_bonus_keeps_the_policy_undecided() -> None:
    def left(bonus: float) -> float:
        learner = PolicyLearner(replace(SMALL, lr=0.05, entropy=bonus), Planted().decisions, seed=0)
        for _ in range(12):
            actions, log_prob = learner.draw()
            learner.learn(Experience(actions, log_prob, actions[0] / 8))
        return learner.entropy()

    assert left(0.3) > left(0.0)


def test_the_ring_holds_the_last_lessons_only() -> None:
    learner = PolicyLearner(replace(SMALL, buffer=3), Planted().decisions, seed=0)
    for number in range(5):
        learner.learn(Experience((number,) * 6, -1.0, 0.1 * number))
    assert [item.actions[0] for item in learner.experiences] == [2, 3, 4]


def test_decisions_that_are_no_operations_keep_heads_of_their_own() -> None:
    decisions = (
        Decision(name="a", options=(1, 2), group="op"),
        Decision(name="b", options=(1, 2), group="width"),
        Decision(name="c", options=(1, 2), group="op"),
        Decision(name="d", options=(1, 2, 3), group="op"),
    )
    assert assign_heads(decisions) == ((0, 1, 0, 2), (2, 2, 3))


def outcome(strategy: Any, asked: Problem) -> dict[str, Any]:
    job = strategy.job(asked)
    for _ in job.steps():
        pass
    return dict(job.result())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_controller_finds_the_planted_best_and_beats_random_at_equal_trials() -> None:
    best = best_within(50.0, Planted())
    close = better = 0
    for seed in range(10):
        asked = problem(limit=50.0, seed=seed, noise=0.003)
        found = outcome(Controller(trials=300, **QUICK), asked)
        drawn = RandomSearch(trials=300).begin(asked, ArchitecturePrices(asked)).ask()
        luck = max(quality_of(item.architecture.picks) for item in drawn)  # even if noise never misled it
        quality = quality_of(tuple(found["architecture"]["architecture"]["picks"]))
        close += quality >= 0.98 * best
        better += quality > luck
    assert close >= 9
    assert better >= 9


def test_the_reward_is_the_objective_so_that_cost_can_weigh_in() -> None:
    asked = replace(problem(), objective=Linear(weight=1.0))  # every channel costs more than it is worth
    state = SMALL.begin(asked, ArchitecturePrices(asked))
    batch = state.ask()
    results = [TrialResult(id=number, status="done", quality=0.5) for number, _ in enumerate(batch)]
    pairs = zip(batch, results, strict=True)
    state.tell([Judged(candidate=candidate, result=result) for candidate, result in pairs])
    rewards = [lesson.reward for lesson in state._learner.experiences]
    assert rewards == pytest.approx([0.5 - candidate.cost for candidate in batch])


def test_every_trial_is_new_and_within_the_budget_and_a_small_space_ends_the_search() -> None:
    found = outcome(replace(SMALL, trials=8), problem(limit=30.0))
    prints = [item["fingerprint"] for item in found["trials"]]
    assert len(set(prints)) == len(prints) == 8
    assert max(item["result"]["cost"] for item in found["trials"]) <= 30
    few = outcome(replace(SMALL, trials=9), problem(space=Planted(options=2, decisions_count=2)))
    assert len(few["trials"]) == 4


def test_a_budget_that_no_architecture_meets_names_the_cheapest_seen() -> None:
    with pytest.raises(SearchProblem, match=r"no architecture within 5 ch in \d+ draws; the cheapest seen"):
        outcome(SMALL, problem(limit=5.0))


def test_a_search_of_which_every_trial_fails_says_why_and_single_failures_teach_nothing_but_zero() -> None:
    with pytest.raises(SearchProblem, match="failed, most often with: MemoryError: out of memory"):
        outcome(SMALL, problem(work=planted.fail))
    found = outcome(SMALL, problem(work=planted.fail_after_first))
    assert found["failed"] == 5
    assert 0 < found["baseline"] < found["quality"]


def test_a_controller_repeats_by_seed_and_goes_on_after_any_step(tmp_path: Path) -> None:
    check_strategy(replace(SMALL, feedback=True), problem(noise=0.05), tmp_path)


def stopped(folder: Path, *, after: int) -> None:
    job = SMALL.job(problem(noise=0.05))
    for number, _ in enumerate(job.steps(), start=1):
        if number == after:
            job.save(folder)
            return


def test_a_resumed_controller_reads_its_weights_instead_of_learning_again(tmp_path: Path) -> None:
    stopped(tmp_path, after=8)  # in the third batch of two
    assert (tmp_path / "strategy" / "state.safetensors").exists()
    state = json.loads((tmp_path / "strategy" / "state.json").read_text())
    assert state["asked"] == 4
    assert len(state["lessons"]) == 4
    job: Any = SMALL.job(problem(noise=0.05))
    job.load(tmp_path)
    assert job._state._learner.baseline == state["baseline"]
    assert len(job._state._learner.experiences) == 4
    for _ in job.steps():
        pass
    whole = outcome(SMALL, problem(noise=0.05))
    assert [item["fingerprint"] for item in job.result()["trials"]] == [
        item["fingerprint"] for item in whole["trials"]
    ]
    assert job.result()["baseline"] == whole["baseline"]


def test_a_controller_of_another_space_is_refused(tmp_path: Path) -> None:
    stopped(tmp_path, after=8)
    job = replace(SMALL, hidden=9).job(problem(noise=0.05))
    with pytest.raises(RunProblem, match="belongs to another space or other settings"):
        job.load(tmp_path)
    shutil.rmtree(tmp_path / "strategy")
    with pytest.raises(RunProblem, match="does not exist"):
        SMALL.job(problem(noise=0.05)).load(tmp_path)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"trials": 0}, "trials: 0 is too small"),
        ({"batch": 0}, "batch: 0 is too small"),
        ({"lr": 0.0}, "lr: 0.0; give a number above 0"),
        ({"clip": float("nan")}, "clip: nan"),
        ({"baseline_decay": 1.0}, "baseline_decay: 1.0"),
        ({"entropy": -1.0}, "entropy: -1.0 is no weight"),
        ({"warmup": -1}, "warmup: -1 is too small"),
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(SearchProblem, match=message):
        Controller(**wrong)


FAMILIES = ("decoder_cell", "scalable_path", "inverted_residual", "multi_resolution", "hyper_cell")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_can_be_drawn_from_a_policy(family: str) -> None:
    space = SPACES.get(family)()
    net = policy(space.decisions, hidden=4, layers=1)
    drawn = net.sample(torch.Generator().manual_seed(0)).actions
    picks = {decision.name: choice for decision, choice in zip(space.decisions, drawn, strict=True)}
    assert type(space.architecture(picks)) is space.architecture_type


def test_a_controller_resumes_in_the_options_that_a_supernet_has_left(tmp_path: Path) -> None:
    asked = replace(problem(), space=RemainingSpace(space=Planted(), options={"d0": (1, 3), "d4": (0, 2, 5)}))
    job = SMALL.job(asked)
    for number, _ in enumerate(job.steps(), start=1):
        if number == 8:  # in the third batch of two
            job.save(tmp_path)
            break
    resumed = SMALL.job(asked)
    resumed.load(tmp_path)
    for _ in resumed.steps():
        pass
    whole = [item["fingerprint"] for item in outcome(SMALL, asked)["trials"]]
    found: Any = resumed.result()
    assert [item["fingerprint"] for item in found["trials"]] == whole

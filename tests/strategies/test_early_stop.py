"""Early stop against the running mean, and the memory of a driver that tells trials about it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from segtailor.core.errors import UserError
from segtailor.core.strategy import Problem, Trial, TrialResult
from segtailor.strategies import Controller, Evolution, RandomSearch
from segtailor.strategies.evaluators.staged import EarlyStop
from segtailor.testing import check_strategy
from tests.strategies.planted import judge, problem

STOP = EarlyStop()


def rewarded(value: float) -> TrialResult:
    return TrialResult(id=0, status="done", quality=value, metrics={"stage1": value})


def test_the_mean_starts_with_the_first_reward_and_moves_slowly() -> None:
    known = STOP.begin()
    assert known == {"count": 0, "mean": None}
    known = STOP.learn(known, rewarded(0.4))
    assert known == {"count": 1, "mean": 0.4}
    known = STOP.learn(known, rewarded(0.6))
    assert known["mean"] == pytest.approx(0.99 * 0.4 + 0.01 * 0.6)
    assert STOP.learn(known, TrialResult(id=1, status="failed")) == known


def test_the_chance_to_go_on_below_the_mean_is_annealed() -> None:
    found = [STOP.chance(count) for count in (0, 99, 100, 200, 300, 400, 9999)]
    assert found == pytest.approx([0.9, 0.9, 0.81, 0.648, 0.4536, 0.27216, 0.27216])


def test_above_the_mean_goes_on_and_below_it_by_chance() -> None:
    known: dict[str, Any] = {"count": 0, "mean": 0.5}
    assert STOP.goes_on(0.51, known, 0.999)
    assert STOP.goes_on(0.1, known, 0.89)
    assert not STOP.goes_on(0.1, known, 0.91)
    assert STOP.goes_on(0.0, STOP.begin(), 0.999)  # nothing to compare with
    assert STOP.goes_on(0.0, {}, 0.999)


def test_the_slack_rule_forgives_a_share_of_the_mean() -> None:
    slack = EarlyStop(rule="slack", start=0.5)
    known: dict[str, Any] = {"count": 0, "mean": 0.5}
    assert slack.goes_on(0.3, known, 1.0)
    assert not slack.goes_on(0.2, known, 1.0)
    assert not slack.goes_on(0.3, known, 0.1)
    shares = [slack.goes_on(0.4, known, Random(seed).random()) for seed in range(300)]
    assert 0.45 < sum(shares) / 300 < 0.75  # u must exceed about 0.4


@pytest.mark.parametrize("wrong", [{"start": 1.1}, {"decay": -0.1}, {"factors": (0.5,)}, {"every": 0}])
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="early_stop"):
        EarlyStop(**wrong)


def staged(trial: Trial, device: str) -> TrialResult:
    """Judge as planted; stop by the rule, and say what the trial was told."""
    found = judge(trial, device)
    reward = found.quality or 0.0
    told = {"stage1": reward, "count": float(trial.context["count"])}
    rule = EarlyStop(start=0.0, every=int(trial.evaluator["every"]))
    if not rule.goes_on(reward, trial.context, 0.5):
        return trial.stopped(reward, "not above the mean", **told)
    return trial.done(reward, **told)


def asked(every: int) -> Problem:
    base = problem(noise=0.05)
    assert base.evaluator is not None
    evaluator = replace(
        base.evaluator,
        work=staged,
        settings={"every": every, "noise": 0.05},
        memory=EarlyStop(start=0.0, every=every),
    )
    return replace(base, evaluator=evaluator)


def records(strategy: Any, every: int) -> list[dict[str, Any]]:
    job = strategy.job(asked(every))
    for _ in job.steps():
        pass
    return list(job.result()["trials"])


@pytest.mark.parametrize("every", [1, 4])
def test_trials_of_one_batch_are_told_what_was_known_some_trials_ago(every: int) -> None:
    found = records(RandomSearch(trials=10), every)
    assert [item["result"]["metrics"]["count"] for item in found] == [i // every * every for i in range(10)]
    assert {item["result"]["status"] for item in found} == {"done", "stopped"}
    mean = found[0]["result"]["quality"]
    for item in found[1:2] if every == 1 else []:
        assert (item["result"]["status"] == "done") == (item["result"]["quality"] > mean)


def test_a_stopped_trial_is_never_chosen_but_teaches() -> None:
    job: Any = Controller(trials=8, batch=2, hidden=4, layers=1, warmup=0).job(asked(1))
    for _ in job.steps():
        pass
    result = job.result()
    best = next(item for item in result["trials"] if item["id"] == result["trial"])
    assert best["result"]["status"] == "done"
    assert len(job._state._learner.experiences) == 8
    assert result["failed"] == 0


@pytest.mark.parametrize(
    "strategy",
    [
        RandomSearch(trials=5),
        Evolution(trials=6, population=3),
        pytest.param(
            Controller(trials=5, batch=2, hidden=4, layers=1, warmup=0),
            marks=pytest.mark.slow,
            id="controller",
        ),
    ],
)
def test_what_is_known_is_the_same_after_any_interruption(strategy: Any, tmp_path: Path) -> None:
    check_strategy(strategy, asked(2), tmp_path)

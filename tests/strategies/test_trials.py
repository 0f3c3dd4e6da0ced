"""The job around ask and tell: resume, halving, cache, failures, progress."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from segtailor.core.errors import RunProblem, Unsupported
from segtailor.core.job import Step
from segtailor.core.strategy import Problem, SearchProblem, Trial, TrialResult
from segtailor.strategies import Evolution, Expansion, Halving, RandomSearch
from segtailor.testing import check_strategy
from tests.strategies import planted
from tests.strategies.planted import Planted, problem

STRATEGIES = [RandomSearch(trials=12), Evolution(trials=24, population=6), Expansion(steps=3)]
HALVED = Evolution(trials=16, population=8, halving=Halving(rungs=(0.25, 0.5), keep=0.5))


def finish(job: Any) -> dict[str, Any]:
    for _ in job.steps():
        pass
    return dict(job.result())


def plain(result: dict[str, Any]) -> dict[str, Any]:
    """Drop what may differ between equal searches: times."""
    text = json.loads(json.dumps(result))
    for record in text["trials"]:
        record["result"].pop("seconds")
    return text


def interrupted(strategy: Any, asked: Problem, folder: Path, *, after: int) -> None:
    """Work for some steps, save and stop."""
    job = strategy.job(asked)
    steps = job.steps()
    for _ in range(after):
        next(steps)
    job.save(folder)
    steps.close()


@pytest.mark.parametrize(
    "strategy", [*STRATEGIES, HALVED], ids=["random", "evolution", "expansion", "halving"]
)
def test_a_search_ends_the_same_whenever_it_is_stopped_and_resumed(strategy: Any, tmp_path: Path) -> None:
    check_strategy(strategy, problem(noise=0.05), tmp_path)


def test_the_check_of_strategies_notices_one_that_does_not_repeat(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="result by seed"):
        check_strategy(STRATEGIES[0], problem(work=planted.moody), tmp_path)


def test_only_trials_in_flight_are_issued_again_with_the_same_id_and_seed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    asked = problem(work=planted.logged, log=str(log))
    strategy = RandomSearch(trials=6)
    interrupted(strategy, asked, tmp_path, after=4)  # one step for the batch, then three trials
    before = log.read_text().splitlines()
    again = strategy.job(asked)
    again.load(tmp_path)
    found = finish(again)
    after = log.read_text().splitlines()[len(before) :]
    assert len(before) == 3
    assert len(after) == 3
    expected = [f"{item['id']} {item['seed']} 1.0" for item in found["trials"]]
    assert before + after == expected


def test_results_can_be_retold_in_any_order() -> None:
    asked = problem(noise=0.05)
    whole = finish(STRATEGIES[1].job(asked))
    again: Any = STRATEGIES[1].job(asked)
    again.retell(reversed(whole["trials"]))
    assert list(again.steps()) == []
    assert plain(dict(again.result())) == plain(whole)


def test_results_of_another_search_are_refused(tmp_path: Path) -> None:
    interrupted(RandomSearch(trials=5), problem(seed=1), tmp_path, after=4)
    again = RandomSearch(trials=5).job(problem(seed=2))
    again.load(tmp_path)
    with pytest.raises(RunProblem, match="judged another architecture"):
        finish(again)


def test_measured_prices_are_restored_not_measured_again(tmp_path: Path) -> None:
    asked = problem()
    interrupted(Expansion(steps=2), asked, tmp_path, after=3)
    state = json.loads((tmp_path / "trials.json").read_text())
    key = state["trials"][0]["fingerprint"]
    state["prices"][key] = 5.5
    (tmp_path / "trials.json").write_text(json.dumps(state))
    again = Expansion(steps=2).job(asked)
    again.load(tmp_path)
    assert finish(again)["family"][0]["cost"] == 5.5


def test_a_batch_that_failed_entirely_is_tried_again_on_resume(tmp_path: Path) -> None:
    job = Expansion(steps=2).job(problem(work=planted.fail_after_first))
    with pytest.raises(
        SearchProblem, match=r"all 6 candidates of step 1 failed.*planted failure.*tried again"
    ):
        finish(job)
    job.save(tmp_path)
    again = Expansion(steps=2).job(problem())
    again.load(tmp_path)
    assert len(finish(again)["family"]) == 3


def test_failed_trials_are_results_and_the_search_goes_on() -> None:
    found = finish(RandomSearch(trials=8).job(problem(work=planted.fail_some)))
    reasons = [item["result"]["reason"] for item in found["trials"]]
    assert found["failed"] == 4
    assert reasons[1] == reasons[5] == "MemoryError: out of memory (3 times)"
    assert reasons[2] == reasons[6] == "quality is nan: training diverged (3 times)"
    assert found["quality"] > 0


def test_a_function_that_workers_cannot_import_is_refused_before_any_work() -> None:
    def inner(trial: Trial, device: str) -> TrialResult:
        return planted.judge(trial, device)

    for work in (inner, partial(planted.judge, device="cpu")):
        with pytest.raises(Unsupported, match="cannot be imported by workers; give a function"):
            RandomSearch(trials=2).job(problem(work=work))


def test_halving_spends_full_budgets_on_the_better_part_only(tmp_path: Path) -> None:
    log = tmp_path / "log"
    strategy = RandomSearch(trials=8, halving=Halving(rungs=(0.25, 0.5), keep=0.5))
    found = finish(strategy.job(problem(work=planted.logged, log=str(log))))
    budgets = [line.split()[2] for line in log.read_text().splitlines()]
    assert budgets == ["0.25"] * 8 + ["0.5"] * 4 + ["1.0"] * 2
    full = [item for item in found["trials"] if item["budget"] == 1]
    best = sorted((item["result"]["quality"] for item in found["trials"][:8]), reverse=True)
    assert sorted((item["result"]["quality"] for item in full), reverse=True) == best[:2]
    assert found["quality"] == best[0]
    assert {item["trial"] for item in found["front"]} <= {item["id"] for item in full}


@pytest.mark.parametrize("strategy", [HALVED, Expansion(steps=3, halving=Halving())])
def test_halving_is_an_option_of_every_strategy(strategy: Any) -> None:
    found = finish(strategy.job(problem()))
    assert {item["budget"] for item in found["trials"]} == {0.25, 0.5, 1.0}
    chosen = found["trials"][found["trial"]]
    assert chosen["budget"] == 1


def test_equal_trials_of_another_search_come_from_the_cache(tmp_path: Path) -> None:
    log = tmp_path / "log"
    asked = problem(work=planted.logged, log=str(log), cache=tmp_path / "cache")
    first = finish(RandomSearch(trials=4).job(asked))
    second = finish(RandomSearch(trials=6).job(asked))
    assert len(log.read_text().splitlines()) == 6
    assert [item["result"]["cached"] for item in second["trials"]] == [True] * 4 + [False] * 2
    assert [item["result"]["quality"] for item in second["trials"][:4]] == [
        item["result"]["quality"] for item in first["trials"]
    ]


def test_other_settings_data_or_budgets_do_not_share_the_cache(tmp_path: Path) -> None:
    log = tmp_path / "log"
    asked = problem(work=planted.logged, log=str(log), cache=tmp_path / "cache")
    finish(RandomSearch(trials=2).job(asked))
    assert asked.evaluator is not None
    evaluator = vars(asked.evaluator)
    for change in ({"data": "other"}, {"settings": {**evaluator["settings"], "noise": 0.1}}):
        other = Problem(**{**vars(asked), "evaluator": type(asked.evaluator)(**{**evaluator, **change})})
        finish(RandomSearch(trials=2).job(other))
    finish(RandomSearch(trials=2, halving=Halving(rungs=(0.5,))).job(asked))  # two at half budget are new
    assert len(log.read_text().splitlines()) == 2 + 2 + 2 + 2


def test_a_damaged_cache_entry_is_computed_again(tmp_path: Path) -> None:
    asked = problem(cache=tmp_path)
    first = finish(RandomSearch(trials=2).job(asked))
    next(tmp_path.glob("*.json")).write_text('{"id": 0, "sta')
    second = finish(RandomSearch(trials=2).job(asked))
    assert sorted(item["result"]["cached"] for item in second["trials"]) == [False, True]
    assert second["quality"] == first["quality"]


def test_steps_report_progress_best_front_and_time_left() -> None:
    steps: list[Step] = list(RandomSearch(trials=5).job(problem()).steps())
    assert [step.done for step in steps] == [0, 1, 2, 3, 4, 5]
    assert {step.total for step in steps} == {5}
    assert [step.metrics["running"] for step in steps] == [1, 1, 1, 1, 1, 0]
    assert steps[-1].metrics["seconds_left"] == 0 < steps[1].metrics["seconds_left"]
    qualities = [step.metrics["quality"] for step in steps[1:]]
    assert [step.best["quality"] for step in steps[1:]] == [max(qualities[: n + 1]) for n in range(5)]
    assert steps[-1].metrics["front"] >= 1
    assert steps[-1].checkpoint


def test_expansion_knows_about_how_many_trials_are_left() -> None:
    steps = list(Expansion(steps=3).job(problem(space=Planted())).steps())
    totals = [step.total for step in steps if step.total is not None]
    assert totals[0] >= steps[-1].done
    assert totals[-1] == steps[-1].done


def test_a_search_without_any_finished_trial_has_no_result() -> None:
    with pytest.raises(SearchProblem, match="no finished trial yet"):
        RandomSearch().job(problem()).result()


@pytest.mark.parametrize("how", ["memory", "torch", "diverged", "nan"])
def test_out_of_memory_and_divergence_are_tried_again_with_the_same_seed(how: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    found = finish(
        RandomSearch(trials=3).job(problem(work=planted.recover, log=str(log), tries=3, how=how)),
    )
    assert found["failed"] == 0
    lines = log.read_text().splitlines()
    assert len(lines) == 5
    assert len({line for line in lines if line.startswith("1 ")}) == 1  # one seed
    assert lines[-1].startswith("1 ")  # after the others


def test_a_trial_that_stays_out_of_memory_fails_after_the_last_retry(tmp_path: Path) -> None:
    log = tmp_path / "log"
    asked = problem(work=planted.recover, log=str(log), tries=99, how="memory")
    found = finish(RandomSearch(trials=3).job(Problem(**{**vars(asked), "retries": 1})))
    assert [item["result"]["status"] for item in found["trials"]] == ["done", "failed", "done"]
    assert found["trials"][1]["result"]["reason"] == "MemoryError: no room (2 times)"
    assert len(log.read_text().splitlines()) == 4


def test_what_the_user_must_correct_is_not_tried_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    found = finish(
        RandomSearch(trials=3).job(problem(work=planted.recover, log=str(log), tries=99, how="data")),
    )
    assert found["failed"] == 1
    assert len(log.read_text().splitlines()) == 3


def test_steps_carry_every_price_and_result_once() -> None:
    job: Any = Expansion(steps=2).job(problem(noise=0.05))
    records = [record for step in job.steps() for record in step.records]
    trials = [record for record in records if "prices" not in record]
    assert trials == job.result()["trials"]
    prices = [key for record in records if "prices" in record for key in record["prices"]]
    assert len(prices) == len(set(prices))
    assert {item["fingerprint"] for item in trials} <= set(prices)


def test_prices_in_records_are_restored_not_measured_again() -> None:
    job: Any = Expansion(steps=2).job(problem())
    first = next(job.steps()).records
    ((key, price),) = first[0]["prices"].items()
    again: Any = Expansion(steps=2).job(problem())
    again.retell([{"prices": {key: price + 0.5}}])
    assert finish(again)["family"][0]["cost"] == price + 0.5


@pytest.mark.parametrize("strategy", STRATEGIES, ids=["random", "evolution", "expansion"])
def test_a_search_that_is_out_of_time_ends_with_what_it_has(strategy: Any, tmp_path: Path) -> None:
    job = strategy.job(replace(problem(work=planted.slow, sleep=0.05), seconds=0.4))
    begin = time.monotonic()
    result = finish(job)
    assert time.monotonic() - begin < 3.0
    assert 2 <= len(result["trials"]) < 20
    assert result["architecture"] in [
        {**result["architecture"], "architecture": record["architecture"]} for record in result["trials"]
    ]
    job.save(tmp_path)
    again = strategy.job(replace(problem(work=planted.slow, sleep=0.05), seconds=0.4))
    again.load(tmp_path)
    assert len(finish(again)["trials"]) <= len(result["trials"]) + 2


def test_two_trials_are_finished_however_late_it_is() -> None:
    result = finish(
        RandomSearch(trials=12).job(replace(problem(work=planted.slow, sleep=0.02), seconds=1e-6))
    )
    assert len(result["trials"]) == 2

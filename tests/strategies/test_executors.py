"""Processes: the same results as serial, whatever happens to a worker."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from segtailor.core.strategy import SearchProblem, Trial, TrialResult
from segtailor.strategies import Evolution, Processes, RandomSearch, Serial
from tests.strategies import planted
from tests.strategies.planted import problem

ROOT = Path(__file__).parents[2]


def results(executor: Any, strategy: Any, **settings: Any) -> set[tuple[str, int, str, float | None]]:
    job = strategy.job(problem(executor=executor, **settings))
    for _ in job.steps():
        pass
    return {
        (item["fingerprint"], item["seed"], item["result"]["status"], item["result"]["quality"])
        for item in job.result()["trials"]
    }


def test_processes_give_the_same_results_as_serial() -> None:
    strategy = Evolution(trials=18, population=6)
    assert results(Processes(workers=2), strategy, noise=0.05) == results(Serial(), strategy, noise=0.05)


@pytest.mark.slow
def test_a_killed_worker_loses_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    strategy = RandomSearch(trials=5)
    found = results(Processes(workers=2), strategy, work=planted.die_once, mark=str(mark))
    assert mark.exists()
    assert found == results(Serial(), strategy)


@pytest.mark.slow
def test_a_trial_that_always_kills_its_worker_is_recorded_as_failed() -> None:
    job: Any = RandomSearch(trials=4).job(
        problem(executor=Processes(workers=2, retries=1), work=planted.die_always)
    )
    steps = list(job.steps())
    records = job.result()["trials"]
    assert [item["result"]["status"] for item in records] == ["done", "done", "failed", "done"]
    assert records[2]["result"]["reason"].startswith("killed its worker 2 times")
    assert steps[-1].done == 4


@pytest.mark.slow
def test_a_trial_that_hangs_is_ended_after_the_timeout() -> None:
    job: Any = RandomSearch(trials=3).job(
        problem(executor=Processes(workers=1, retries=0, timeout=5.0), work=planted.hang, seed=0)
    )
    started = time.monotonic()
    assert [step.done for step in job.steps()][-1] == 3
    assert time.monotonic() - started < 50
    assert "took longer than 5 s" in job.result()["trials"][1]["result"]["reason"]


@pytest.mark.slow
def test_leaving_a_search_early_ends_its_workers_at_once() -> None:
    job: Any = RandomSearch(trials=4).job(problem(executor=Processes(workers=2), work=planted.slow, sleep=60))
    steps = job.steps()
    assert next(steps).metrics["running"] == 2
    started = time.monotonic()
    steps.close()
    assert time.monotonic() - started < 20


def test_a_module_that_a_process_cannot_import_fails_the_trials_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def judge(trial: Trial, device: str) -> TrialResult:
        return planted.judge(trial, device)

    here = ModuleType("only_in_the_driver")
    here.judge = judge  # type: ignore[attr-defined]
    judge.__module__, judge.__qualname__ = here.__name__, "judge"
    monkeypatch.setitem(sys.modules, here.__name__, here)
    with pytest.raises(
        SearchProblem, match=r"workers cannot import 'only_in_the_driver:judge' \(No module named"
    ):
        results(Processes(workers=1), RandomSearch(trials=1), work=judge)


def test_impossible_settings_of_processes_are_refused() -> None:
    for wrong in ({"workers": 0}, {"threads": 0}, {"retries": -1}, {"timeout": 0.0}):
        with pytest.raises(SearchProblem):
            Processes(**wrong)  # type: ignore[arg-type]


@pytest.mark.slow
def test_workers_end_when_the_driver_is_killed() -> None:
    program = "from tests.strategies.driven import drive_slowly; drive_slowly()"
    driver = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    assert driver.stdout.readline().strip() == "running"
    workers = psutil.Process(driver.pid).children(recursive=True)
    driver.kill()
    driver.wait()
    assert len(workers) >= 2
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert alive == []


@pytest.mark.slow
def test_a_trial_out_of_memory_is_tried_again_in_a_process(tmp_path: Path) -> None:
    log = tmp_path / "log"
    strategy = RandomSearch(trials=3)
    found = results(Processes(workers=2), strategy, work=planted.recover, log=str(log), tries=2, how="memory")
    assert {status for _, _, status, _ in found} == {"done"}
    tried = [line for line in log.read_text().splitlines() if line.startswith("1 ")]
    assert len(tried) == 2
    assert len(set(tried)) == 1  # the same seed

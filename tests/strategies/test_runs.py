"""Searches in run directories end the same after their process was killed or their journal was damaged."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from segtailor.runs import Layout, read_steps
from tests.strategies.driven import drive_cosearch, drive_gradient, drive_trials

ROOT = Path(__file__).parents[2]
KILLS = 4


def start(kind: str, folder: Path) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-m", "tests.strategies.driven", kind, str(folder)]
    return subprocess.Popen(program, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def records(folder: Path) -> list[dict[str, Any]]:
    """Return what the journal says; the last line may be half written."""
    journal = Layout(folder).journal
    lines = journal.read_text().splitlines() if journal.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def count(folder: Path, kind: str) -> int:
    return sum(record["kind"] == kind for record in records(folder))


def killed(kind: str, folder: Path, *, steps: int, checkpoints: int) -> None:
    """Start a search and kill its process once the journal holds some steps and checkpoints."""
    process = start(kind, folder)
    try:
        end = time.monotonic() + 60
        while time.monotonic() < end and process.poll() is None:
            if count(folder, "step") > steps and count(folder, "checkpoint") >= checkpoints:
                break
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    assert not (folder / "result.json").exists()


def plain(result: dict[str, Any]) -> dict[str, Any]:
    for record in result["trials"]:
        record["result"].pop("seconds")
    return result


@pytest.mark.slow
def test_a_killed_driver_resumes_to_the_same_result(tmp_path: Path) -> None:
    killed("trials", tmp_path / "killed", steps=9, checkpoints=1)
    again = drive_trials(tmp_path / "killed")
    whole = drive_trials(tmp_path / "whole")
    assert plain(again) == plain(whole)
    done = [item.step.done for item in read_steps(tmp_path / "killed")]
    assert done[-1] == 24
    starts = [entry["step"] for entry in records(tmp_path / "killed") if entry["kind"] == "start"]
    assert starts[0] == 0 < starts[1]  # went on from what was saved


@pytest.mark.slow
def test_a_journal_cut_in_the_middle_of_a_line_is_no_obstacle(tmp_path: Path) -> None:
    killed("trials", tmp_path / "cut", steps=5, checkpoints=1)
    journal = tmp_path / "cut" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-7])
    assert plain(drive_trials(tmp_path / "cut")) == plain(drive_trials(tmp_path / "whole"))
    assert all(json.loads(line) for line in journal.read_text().splitlines())


def test_a_finished_search_is_read_not_repeated(tmp_path: Path) -> None:
    first = drive_trials(tmp_path)
    assert drive_trials(tmp_path) == first
    assert len(first["trials"]) == 24


@pytest.mark.slow
def test_a_killed_gradient_search_resumes_to_the_same_result(tmp_path: Path) -> None:
    killed("gradient", tmp_path / "killed", steps=0, checkpoints=3)
    assert drive_gradient(tmp_path / "killed") == drive_gradient(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kills_at_random_steps_change_neither_student_nor_teacher(tmp_path: Path) -> None:
    whole, folder = drive_cosearch(tmp_path / "whole"), tmp_path / "killed"
    rng, phases = random.Random(1), []
    while len(phases) < KILLS and not Layout(folder).result.exists():
        child = start("cosearch", folder)
        goal, end = count(folder, "checkpoint") + rng.randint(1, 4), time.monotonic() + 90
        while count(folder, "checkpoint") < goal and child.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.3))  # somewhere in the next step, or while that is written
        if child.poll() is None:
            child.kill()
            phases.append([record["phase"] for record in records(folder) if record["kind"] == "step"][-1])
        child.wait()
    assert len(phases) == KILLS, "the search ended before it was killed often enough to prove anything"
    assert {"pretrain", "search"} <= set(phases)
    resumed = drive_cosearch(folder)
    assert resumed["architecture"] == whole["architecture"]
    assert resumed["roles"] == whole["roles"]
    assert resumed == whole

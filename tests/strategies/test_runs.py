"""A search in a run directory survives what happens to its process and its journal."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from segtailor.runs import read_steps
from tests.strategies.driven import drive

ROOT = Path(__file__).parents[2]


def plain(result: dict[str, Any]) -> dict[str, Any]:
    for record in result["trials"]:
        record["result"].pop("seconds")
    return result


def killed(folder: Path, *, trials: int) -> None:
    """Start a search and kill its process once the journal holds some trials."""
    program = [sys.executable, "-m", "tests.strategies.driven", str(folder), "0.2"]
    process = subprocess.Popen(program, cwd=ROOT)
    try:
        end = time.monotonic() + 60
        while time.monotonic() < end and process.poll() is None:
            journal = folder / "journal.jsonl"
            text = journal.read_text() if journal.exists() else ""
            if text.count('"kind":"step"') > trials and '"kind":"checkpoint"' in text:
                break
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
    assert not (folder / "result.json").exists()


@pytest.mark.slow
def test_a_killed_driver_resumes_to_the_same_result(tmp_path: Path) -> None:
    killed(tmp_path / "killed", trials=9)
    again = drive(tmp_path / "killed")
    whole = drive(tmp_path / "whole")
    assert plain(again) == plain(whole)
    done = [item.step.done for item in read_steps(tmp_path / "killed")]
    assert done[-1] == 24
    journal = [json.loads(line) for line in (tmp_path / "killed" / "journal.jsonl").read_text().splitlines()]
    starts = [entry["step"] for entry in journal if entry["kind"] == "start"]
    assert starts[0] == 0 < starts[1]  # went on from what was saved


@pytest.mark.slow
def test_a_journal_cut_in_the_middle_of_a_line_is_no_obstacle(tmp_path: Path) -> None:
    killed(tmp_path / "cut", trials=5)
    journal = tmp_path / "cut" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-7])
    assert plain(drive(tmp_path / "cut")) == plain(drive(tmp_path / "whole"))
    assert all(json.loads(line) for line in journal.read_text().splitlines())


def test_a_finished_search_is_read_not_repeated(tmp_path: Path) -> None:
    first = drive(tmp_path)
    assert drive(tmp_path) == first
    assert len(first["trials"]) == 24

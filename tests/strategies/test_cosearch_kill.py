"""A co-search killed with SIGKILL at random moments ends, when resumed, with the same student and teacher."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from segtailor.runs import Layout
from tests.strategies.cosearch_driven import drive

ROOT = Path(__file__).parents[2]
KILLS = 4


def records(folder: Path) -> list[dict[str, Any]]:
    """Return what the journal says; the last line may be half written."""
    journal = Layout(folder).journal
    lines = journal.read_text().splitlines() if journal.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def saved(folder: Path) -> int:
    return sum(record["kind"] == "checkpoint" for record in records(folder))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kills_at_random_steps_change_neither_student_nor_teacher(tmp_path: Path) -> None:
    whole, folder = drive(tmp_path / "whole"), tmp_path / "killed"
    command = [sys.executable, "-m", "tests.strategies.cosearch_driven", str(folder)]
    rng, phases = random.Random(1), []
    while len(phases) < KILLS and not Layout(folder).result.exists():
        child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        goal, end = saved(folder) + rng.randint(1, 4), time.monotonic() + 90
        while saved(folder) < goal and child.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.3))  # somewhere in the next step, or while that is written
        if child.poll() is None:
            child.send_signal(signal.SIGKILL)
            phases.append([record["phase"] for record in records(folder) if record["kind"] == "step"][-1])
        child.wait()
    assert len(phases) == KILLS, "the search ended before it was killed often enough to prove anything"
    assert {"pretrain", "search"} <= set(phases)
    resumed = drive(folder)
    assert resumed["architecture"] == whole["architecture"]
    assert resumed["roles"] == whole["roles"]
    assert resumed == whole

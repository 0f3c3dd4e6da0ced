"""A co-search killed with SIGKILL at random moments ends, when resumed, with the same student and teacher."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from segtailor.runs import Layout
from tests.search.cosearch_driven import drive

ROOT = Path(__file__).parents[2]
KILLS = 4


def size(folder: Path) -> int:
    journal = Layout(folder).journal
    return journal.stat().st_size if journal.exists() else 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kills_at_random_steps_change_neither_student_nor_teacher(tmp_path: Path) -> None:
    whole, folder = drive(tmp_path / "whole"), tmp_path / "killed"
    rng, phases = random.Random(1), []
    while len(phases) < KILLS and not Layout(folder).result.exists():
        command = [sys.executable, "-m", "tests.search.cosearch_driven", str(folder)]
        child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(
            rng.randint(2, 3)
        ):  # that many records of this session, then a moment of the next step
            begin, end = size(folder), time.monotonic() + 60
            while size(folder) <= begin and child.poll() is None and time.monotonic() < end:
                time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.3))
        if child.poll() is None:
            child.send_signal(signal.SIGKILL)
            text = Layout(folder).journal.read_text()
            phases.append("search" if '"phase":"search"' in text else "pretrain")
        child.wait()
    assert len(phases) >= 3, "the search ended before it was killed often enough to prove anything"
    assert {"pretrain", "search"} <= set(phases)
    resumed = drive(folder)
    assert resumed["architecture"] == whole["architecture"]
    assert resumed["roles"] == whole["roles"]
    assert resumed == whole

"""A gradient search whose process is killed ends, when resumed, as if nothing had happened."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.strategies.gradient_driven import drive

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_killed_search_resumes_to_the_same_result(tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.strategies.gradient_driven", str(folder)], cwd=ROOT
    )
    try:
        end = time.monotonic() + 60
        while time.monotonic() < end and process.poll() is None:
            journal = folder / "journal.jsonl"
            if journal.exists() and journal.read_text().count('"kind":"checkpoint"') >= 3:
                break
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    assert not (folder / "result.json").exists()
    assert drive(folder) == drive(tmp_path / "whole")

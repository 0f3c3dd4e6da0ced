"""A run that is killed and resumed ends as one that never was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from segtailor.runs import Layout, entries
from tests.runs import toy_job


def script(*arguments: object) -> str:
    command = [sys.executable, toy_job.__file__, *map(str, arguments)]
    done = subprocess.run(
        command, env={"PYTHONPATH": toy_job.SOURCES}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


@pytest.mark.slow
def test_ten_kills_at_random_moments_change_nothing(tmp_path: Path) -> None:
    toy_job.run(tmp_path / "whole")
    killed = int(script("kill", tmp_path / "killed", 10, 1))
    assert killed >= 5  # else the test would prove little
    assert toy_job.outcome(tmp_path / "killed") == toy_job.outcome(tmp_path / "whole")
    starts = [entry for entry in entries(Layout(tmp_path / "killed").journal) if entry["kind"] == "start"]
    assert any(entry["step"] for entry in starts)  # some session did resume


@pytest.mark.parametrize("stride", [23, pytest.param(1, marks=pytest.mark.slow)])
def test_death_before_any_file_access_changes_nothing(tmp_path: Path, stride: int) -> None:
    toy_job.run(tmp_path / "whole")
    different = int(script("everywhere", tmp_path / "dying", stride))
    assert different == 1
    assert toy_job.outcome(tmp_path / "dying") == toy_job.outcome(tmp_path / "whole")


def test_nothing_unfinished_is_left_behind(tmp_path: Path) -> None:
    script("kill", tmp_path / "run", 5, 2)
    assert [path for path in (tmp_path / "run").rglob("*") if path.name.endswith(".tmp")] == []
    assert len(list(Layout(tmp_path / "run").checkpoints.iterdir())) == 2

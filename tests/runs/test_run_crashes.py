"""A run that crashes or is killed, and is resumed, ends like one that never was."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from segtailor.core.job import Step
from segtailor.runs import Layout, Policy, entries, execute, read_steps
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


QUICK = Policy(tensorboard=False)


class Collector:
    """Finds the squares of numbers, in an order that changes; never asks for a checkpoint."""

    def __init__(self, worked: list[int], *, crash_after: int | None = None, backwards: bool = False) -> None:
        self.found: dict[int, int] = {}
        self.worked, self.crash_after, self.backwards = worked, crash_after, backwards

    def steps(self) -> Iterator[Step]:
        left = [number for number in range(6) if number not in self.found]
        for count, number in enumerate(reversed(left) if self.backwards else left):
            if count == self.crash_after:
                raise OSError("power cut")
            self.worked.append(number)
            self.found[number] = number**2
            yield Step(phase="p", done=len(self.found), records=({"id": number, "square": number**2},))

    def save(self, folder: Path) -> None:  # noqa: ARG002
        raise AssertionError("asked to save")

    def load(self, folder: Path) -> None:  # noqa: ARG002
        raise AssertionError("asked to load")

    def retell(self, records: Iterable[Mapping[str, Any]]) -> None:
        self.found.update({record["id"]: record["square"] for record in records})

    def result(self) -> dict[str, Any]:
        return {str(number): self.found[number] for number in sorted(self.found)}


def test_records_survive_several_crashes_without_any_checkpoint(tmp_path: Path) -> None:
    worked: list[int] = []
    for crash in (3, 1):
        with pytest.raises(OSError, match="power cut"):
            execute(lambda at=crash: Collector(worked, crash_after=at), tmp_path, {}, policy=QUICK)
    found = execute(lambda: Collector(worked, backwards=True), tmp_path, {}, policy=QUICK)
    assert found == {str(number): number**2 for number in range(6)}
    assert worked == [0, 1, 2, 3, 5, 4]  # nothing twice


def test_a_record_cut_in_the_middle_is_worked_for_again(tmp_path: Path) -> None:
    worked: list[int] = []
    with pytest.raises(OSError, match="power cut"):
        execute(lambda: Collector(worked, crash_after=3), tmp_path, {}, policy=QUICK)
    journal = Layout(tmp_path).journal
    lines = journal.read_bytes().splitlines(keepends=True)
    last = max(index for index, line in enumerate(lines) if b'"records"' in line)
    journal.write_bytes(b"".join(lines[:last]) + lines[last][:-9])
    execute(lambda: Collector(worked), tmp_path, {}, policy=QUICK)
    assert worked == [0, 1, 2, 2, 3, 4, 5]


def test_steps_are_read_back_with_their_records(tmp_path: Path) -> None:
    execute(lambda: Collector([]), tmp_path, {}, policy=QUICK)
    steps = read_steps(tmp_path)
    assert [step.step.records for step in steps] == [({"id": n, "square": n**2},) for n in range(6)]

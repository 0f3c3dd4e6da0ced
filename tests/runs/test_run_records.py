"""Records in the journal: results that a crash between two checkpoints must not cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from segtailor.core.job import Step
from segtailor.runs import Layout, Policy, execute, read_steps

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

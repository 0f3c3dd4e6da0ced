"""Files of a run: journal and checkpoints; lock and journal are never links."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segtailor.core.errors import RunProblem
from segtailor.core.lock import hold
from segtailor.runs import Journal, entries
from segtailor.runs.checkpoint import MANIFEST, Checkpoints
from tests.runs.toy_job import Toy, files_up_to


def silent(message: str) -> None:
    raise AssertionError(message)


def saved(checkpoints: Checkpoints, *steps: int) -> Toy:
    job = Toy()
    for step in job.steps():
        if step.done in steps:
            checkpoints.save(job, step.done)
    return job


@given(cut=st.integers(0, 200), long=st.integers(0, 9000))
@settings(max_examples=60, deadline=None)
def test_a_journal_cut_anywhere_keeps_its_complete_lines(
    tmp_path_factory: pytest.TempPathFactory, cut: int, long: int
) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    with Journal(path) as journal:
        for number in range(3):
            journal.append("step", step=number, message="x" * long if number == 2 else "é")
    data = path.read_bytes()
    path.write_bytes(data[: max(0, len(data) - cut)])
    complete = data[: max(0, len(data) - cut)].count(b"\n")
    assert [entry["step"] for entry in entries(path)] == list(range(complete))
    with Journal(path) as journal:
        journal.append("step", step=99)
    assert [entry["step"] for entry in entries(path)] == [*range(complete), 99]


def test_a_damaged_line_is_named_and_can_be_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"kind":"a"}\n{"kind":"b\n\xff\xfe\n[1]\n{"kind":"c"}\n')
    with pytest.raises(RunProblem, match=r"line 2 of .*journal.jsonl is damaged"):
        list(entries(path))
    messages: list[str] = []
    assert [entry["kind"] for entry in entries(path, damaged=messages.append)] == ["a", "c"]
    assert [message.split()[1] for message in messages] == ["2", "3", "4"]


def test_an_entry_that_does_not_fit_leaves_the_journal_whole(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.append("note", message="first")
        before = path.read_bytes()
        with files_up_to(len(before) + 20), pytest.raises(RunProblem, match="journal"):
            journal.append("note", message="x" * 100)
        assert path.read_bytes() == before
        journal.append("note", message="third")
    assert [entry["message"] for entry in entries(path)] == ["first", "third"]


def test_the_newest_checkpoints_are_kept_and_restored(tmp_path: Path) -> None:
    checkpoints = Checkpoints(folder=tmp_path / "checkpoints", keep=2)
    assert checkpoints.load(Toy(), warn=silent) == 0
    saved(checkpoints, 3, 6, 9, 12)
    assert checkpoints.steps() == [9, 12]
    job = Toy()
    assert checkpoints.load(job, warn=silent) == job.done == 12


@pytest.mark.parametrize("file", ["state.json", "more/weights.bin", MANIFEST])
@pytest.mark.parametrize("damage", ["cut", "changed", "missing"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path: Path, file: str, damage: str) -> None:
    checkpoints = Checkpoints(folder=tmp_path / "checkpoints")
    saved(checkpoints, 5, 10)
    path = tmp_path / "checkpoints" / "step-000010" / file
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(data[: len(data) // 2] if damage == "cut" else b"7" + data[1:])
    messages: list[str] = []
    job = Toy()
    assert checkpoints.load(job, warn=messages.append) == job.done == 5
    assert len(messages) == 1
    assert "step-000010 is damaged" in messages[0]


def test_no_sound_checkpoint_is_an_error_instead_of_lost_work(tmp_path: Path) -> None:
    checkpoints = Checkpoints(folder=tmp_path / "checkpoints")
    with pytest.raises(RunProblem, match="the folder has none"):
        checkpoints.load(Toy(), warn=silent, expected=True)
    saved(checkpoints, 5)
    (tmp_path / "checkpoints" / "step-000005" / "state.json").write_text("")
    with pytest.raises(RunProblem, match=r"state\.json is missing, cut or changed.*Restore the files"):
        checkpoints.load(Toy(), warn=silent)


def test_checkpoints_ahead_of_a_repeated_step_go(tmp_path: Path) -> None:
    checkpoints = Checkpoints(folder=tmp_path / "checkpoints")
    saved(checkpoints, 5, 20)
    saved(checkpoints, 10)  # as after a fallback from a damaged step 20
    assert checkpoints.steps() == [5, 10]


@pytest.mark.parametrize("name", ["lock", "journal.jsonl"])
@pytest.mark.parametrize("how", ["symbolic", "dangling", "hard", "pipe"])
def test_a_run_changes_no_file_through_a_link(tmp_path: Path, name: str, how: str) -> None:
    writer: Any = {"lock": hold, "journal.jsonl": Journal}[name]
    victim = tmp_path / "victim.txt"
    (tmp_path / "run").mkdir()
    place = tmp_path / "run" / name
    if how != "dangling":
        victim.write_text("mine, without an end of line")
    if how == "hard":
        os.link(victim, place)
    elif how == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to(victim)
    before = victim.read_text() if victim.exists() else None
    with pytest.raises(RunProblem, match=r"no file of its own.*Remove it"), writer(place):
        pass
    assert (victim.read_text() if victim.exists() else None) == before

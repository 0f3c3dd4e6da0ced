"""Files of a run: atomic writes, journal, checkpoints, lock."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segtailor.core.atomic import new_file, new_folder, sweep, write_json, write_text, writing
from segtailor.core.errors import RunProblem
from segtailor.core.lock import hold
from segtailor.runs import Journal, entries
from segtailor.runs.checkpoint import MANIFEST, Checkpoints
from tests.runs.toy_job import Toy, files_up_to


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def silent(message: str) -> None:
    raise AssertionError(message)


def saved(checkpoints: Checkpoints, *steps: int) -> Toy:
    job = Toy()
    for step in job.steps():
        if step.done in steps:
            checkpoints.save(job, step.done)
    return job


def test_failed_write_keeps_the_previous_file_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    write_text(path, "before", what="recipe")
    with files_up_to(1000), pytest.raises(RunProblem, match=r"recipe.*intact.*Free some disk space"):
        write_text(path, "x" * 5000, what="recipe")
    assert path.read_text() == "before"
    assert names(tmp_path) == ["recipe.json"]


def test_failed_folder_keeps_the_previous_one(tmp_path: Path) -> None:
    (tmp_path / ".other.0.tmp").write_text("another process is writing this")
    for content in ("first", "second"):
        with new_folder(tmp_path / "bundle", what="bundle") as folder:
            (folder / "model").write_text(content)
    with (
        files_up_to(10),
        pytest.raises(RunProblem, match="bundle"),
        new_folder(tmp_path / "bundle", what="bundle") as f,
    ):
        (f / "model").write_text("x" * 100)
    assert (tmp_path / "bundle" / "model").read_text() == "second"
    assert sorted(names(tmp_path)) == [".other.0.tmp", "bundle"]


@pytest.mark.parametrize(
    ("problem", "advice"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "Free some disk space"),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), "Free some disk space"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), "Free some disk space"),
        (RuntimeError("I/O error: File too large (os error 27)"), "Free some disk space"),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES)), "permissions"),
    ],
)
def test_every_way_to_fail_a_write_says_what_to_do(tmp_path: Path, problem: Exception, advice: str) -> None:
    with pytest.raises(RunProblem, match=advice), writing(tmp_path / "file", what="file"):
        raise problem


def test_mistakes_in_code_are_not_taken_for_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(KeyError), writing(tmp_path / "file", what="file"):
        raise KeyError("loss")


def test_json_stays_strict_when_numbers_are_not(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"a": (1.0, float("nan")), "b": {"c": float("inf")}}, what="x")
    text = (tmp_path / "x.json").read_text()
    assert json.loads(text, parse_constant=silent) == {"a": [1.0, None], "b": {"c": None}}


def test_sweep_removes_only_unfinished_writes_of_our_own(tmp_path: Path) -> None:
    others = ["notes.tmp", ".notes.tmp", ".x.tmp", ".a.12ab34cd.tmp", ".mine.segtailor-tmp", ".segtailor-tmp"]
    for name in others:
        (tmp_path / name).write_text("the user's")
    (tmp_path / ".editor.tmp").mkdir()
    unfinished = multiprocessing.get_context("fork").Process(target=killed_while_writing, args=(tmp_path,))
    unfinished.start()
    unfinished.join()
    assert len(names(tmp_path)) == len(others) + 3
    sweep(tmp_path)
    assert sorted(names(tmp_path)) == sorted([*others, ".editor.tmp"])


def killed_while_writing(folder: Path) -> None:
    with new_folder(folder / "step-1", what="checkpoint") as one, new_file(folder / "x", what="x") as two:
        (one / "state").write_text("half")
        two.write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_name_of_any_length_can_be_written(tmp_path: Path) -> None:
    for name in ("n" * 255, "\N{SNOWMAN}" * 85):
        write_text(tmp_path / name, "whole", what="file")
        assert (tmp_path / name).read_text() == "whole"
    assert len(names(tmp_path)) == 2


def test_devices_pipes_and_folders_are_never_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(RunProblem, match="Choose another name"):
            write_text(tmp_path / name, "text", what="file")
    assert sorted(names(tmp_path)) == ["folder", "pipe"]
    assert not (tmp_path / "pipe").is_file()


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


def test_a_lock_is_held_once_and_freed_by_leaving(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with hold(path) as locked:
        assert locked
        with pytest.raises(RunProblem, match=f"in use by process {os.getpid()} on "), hold(path):
            pass
    with hold(path):
        pass


def test_a_stale_lock_file_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text('{"pid": 1, "host": "gone", "long": "so that the new content is shorter"}')
    with hold(tmp_path / "lock"):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()


def test_a_new_file_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "film.mp4"
    path.write_text("old")

    def broken() -> None:
        with new_file(path, what="film") as temporary:
            temporary.write_text("half")
            assert path.read_text() == "old"
            raise KeyError("a fault of the writer")

    with pytest.raises(KeyError):
        broken()
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("film.mp4", "old")]
    with new_file(path, what="film") as temporary:
        temporary.write_text("new")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("film.mp4", "new")]


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

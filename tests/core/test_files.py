"""Files: atomic writes, locks, and what is no regular file."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import threading
from pathlib import Path

import pytest

from segtailor.core import lock
from segtailor.core.atomic import new_file, new_folder, sweep, write_json, write_text, writing
from segtailor.core.codec import read_json
from segtailor.core.errors import RunProblem, UserError
from segtailor.core.lock import hold, wait_for
from tests.runs.toy_job import files_up_to


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def silent(message: str) -> None:
    raise AssertionError(message)


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


def test_a_lock_is_held_once_and_freed_by_leaving(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with hold(path) as locked:
        assert locked
        with pytest.raises(RunProblem, match=f"in use by process {os.getpid()} on "), hold(path):
            pass
    with hold(path):
        pass


def test_waiting_for_a_lock_ends_when_its_holder_leaves(tmp_path: Path) -> None:
    path, order = tmp_path / "lock", []

    def wait() -> None:
        with wait_for(path) as locked:
            order.append(f"waited, locked: {locked}")

    with hold(path):
        waiting = threading.Thread(target=wait)
        waiting.start()
        waiting.join(timeout=0.2)
        order.append("left")
    waiting.join(timeout=10)
    assert order == ["left", "waited, locked: True"]
    assert json.loads(path.read_text())["pid"] == os.getpid()  # waiting writes nothing


def test_a_file_system_without_locks_is_reported_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> bool:
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr(lock, "lock_descriptor", fail)
    for take in (hold, wait_for):
        with take(tmp_path / "lock") as locked:
            assert not locked
    assert (tmp_path / "lock").read_text() == ""


def test_a_stale_lock_file_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text('{"pid": 1, "host": "gone", "long": "so that the new content is shorter"}')
    with hold(tmp_path / "lock"):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()


def test_a_pipe_in_place_of_a_file_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.json")
    with pytest.raises(UserError, match="no regular file"):
        read_json(tmp_path / "a.json", what="recipe")

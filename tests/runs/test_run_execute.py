"""Start, resume, stop, finish, refuse."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from segtailor.core.errors import Interrupted, RunProblem, UserError
from segtailor.core.job import Step
from segtailor.runs import Layout, Lines, Policy, entries, execute, read_recipe, read_result, read_steps
from segtailor.runs.interrupt import stoppable
from tests.runs import toy_job
from tests.runs.toy_job import RECIPE, SOURCES, Toy, failing_at, files_up_to

QUICK = Policy(tensorboard=False)


def run(folder: Path, make: Callable[[], Any] = Toy, **options: Any) -> dict[str, Any]:
    return execute(
        make, folder, options.pop("recipe", RECIPE), policy=options.pop("policy", QUICK), **options
    )


def kinds(folder: Path) -> list[str]:
    return [str(entry["kind"]) for entry in entries(Layout(folder).journal)]


def test_a_run_leaves_recipe_environment_journal_and_result(tmp_path: Path) -> None:
    result = run(tmp_path / "a" / "run")
    layout = Layout(tmp_path / "a" / "run")
    assert read_recipe(layout.root) == RECIPE
    assert read_result(layout.root) == result
    assert layout.environment.exists()
    assert kinds(layout.root)[0] == "start"
    assert kinds(layout.root)[-1] == "end"
    assert [item.step.done for item in read_steps(layout.root)] == list(range(1, 31))


def test_a_finished_run_is_read_not_repeated(tmp_path: Path) -> None:
    result = run(tmp_path / "run")

    def never() -> Toy:
        raise AssertionError("built again")

    assert run(tmp_path / "run", never) == result
    assert run(tmp_path / "run", never, leader=False) == result


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.usefixtures("signals_heard")
def test_a_signal_finishes_the_step_saves_and_says_how_to_resume(
    tmp_path: Path, number: signal.Signals
) -> None:
    folder, stream = tmp_path / "my run", StringIO()
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    reached = []

    def hook(done: int) -> None:
        if done == 7:
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)  # a launcher's echo
            time.sleep(0.02)
            reached.append(done)

    with pytest.raises(Interrupted, match=r"at \w+ 7/30 and saved.*segtailor resume '.*my run'"):
        run(folder, lambda: Toy(hook=hook), display=Lines(stream))
    assert reached == [7]
    assert "stopping after this step" in stream.getvalue()
    assert kinds(folder)[-2:] == ["checkpoint", "interrupt"]
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == handlers
    run(folder)
    run(tmp_path / "whole")
    assert toy_job.outcome(folder) == toy_job.outcome(tmp_path / "whole")
    assert kinds(folder).count("step") == 30  # none was repeated


@pytest.mark.usefixtures("signals_heard")
def test_a_second_signal_stops_at_once_and_the_last_checkpoint_stays(tmp_path: Path) -> None:
    def hook(done: int) -> None:
        if done == 7:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.6)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)

    begin = time.monotonic()
    with pytest.raises(Interrupted, match=r"at once.*segtailor resume"):
        run(tmp_path / "run", lambda: Toy(hook=hook))
    assert time.monotonic() - begin < 3
    run(tmp_path / "run")
    run(tmp_path / "whole")
    assert toy_job.outcome(tmp_path / "run") == toy_job.outcome(tmp_path / "whole")


@pytest.fixture
def in_the_background() -> Iterator[None]:
    """Ignore Ctrl-C, as programs do that a shell starts in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("in_the_background", "signals_heard")
def test_signals_of_tests_count_in_the_background_here_and_in_programs() -> None:
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    program = "import signal; signal.raise_signal(signal.SIGINT)"
    assert subprocess.run([sys.executable, "-S", "-c", program], stderr=subprocess.DEVNULL).returncode != 0


def test_ignored_signals_stay_ignored(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        result = run(tmp_path / "run", lambda: Toy(hook=lambda _: os.kill(os.getpid(), signal.SIGHUP)))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert result["done"] == 30


def test_a_run_works_outside_the_main_thread(tmp_path: Path) -> None:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(run(tmp_path / "run")))
    thread.start()
    thread.join()
    assert results[0]["done"] == 30


def test_another_recipe_is_refused_naming_fields_and_values(tmp_path: Path) -> None:
    run(tmp_path / "run")
    other = {"job": "toy", "train": {"steps": 31, "rates": (0.1, 0.2)}, "seed": 1}
    for leader in (True, False):
        with pytest.raises(RunProblem) as caught:
            run(tmp_path / "run", recipe=other, leader=leader)
        assert "train.steps: 30 there, 31 asked" in str(caught.value)
        assert "seed: absent there, 1 asked" in str(caught.value)
        assert "rates" not in str(caught.value)  # tuples and lists are the same JSON
    assert read_recipe(tmp_path / "run") == RECIPE


def test_a_folder_with_other_things_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(RunProblem, match=r"thesis\.tex.*empty folder"):
        run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(RunProblem, match="run directory"):
        run(tmp_path / "thesis.tex" / "run")


def test_two_processes_in_one_folder_are_refused_and_a_killed_one_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, toy_job.__file__, "run", str(folder), "0.5"]
    with subprocess.Popen(command, env={"PYTHONPATH": SOURCES}, stderr=subprocess.DEVNULL) as other:
        while not Layout(folder).journal.exists():
            time.sleep(0.01)
        with pytest.raises(RunProblem, match=f"in use by process {other.pid}"):
            run(folder)
        other.kill()
        other.wait()
    assert run(folder)["done"] == 30


def test_a_failing_job_is_journaled_and_its_error_passed_on(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no loss"):
        run(tmp_path / "run", failing_at(12, UserError("no loss")))
    *_, last = entries(Layout(tmp_path / "run").journal)
    assert (last["kind"], last["error"], last["message"]) == ("error", "UserError", "no loss")
    assert run(tmp_path / "run")["done"] == 30
    assert [item.step.done for item in read_steps(tmp_path / "run")] == list(range(1, 31))
    assert kinds(tmp_path / "run").count("step") == 31  # step 11 was repeated


def test_a_disk_that_fills_up_stops_with_a_remedy_and_loses_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(UserError):
        run(folder, failing_at(7, UserError("pause")))
    with files_up_to(7000), pytest.raises(RunProblem, match=r"checkpoint.*step-000010.*Free some disk space"):
        run(folder)
    assert [path.name for path in Layout(folder).checkpoints.iterdir()] == ["step-000005"]
    run(folder)
    run(tmp_path / "whole")
    assert toy_job.outcome(folder) == toy_job.outcome(tmp_path / "whole")


def test_a_cut_checkpoint_is_reported_and_the_one_before_used(tmp_path: Path) -> None:
    folder, stream = tmp_path / "run", StringIO()
    with pytest.raises(UserError):
        run(folder, failing_at(12, UserError("pause")))
    weights = Layout(folder).checkpoints / "step-000010" / "more" / "weights.bin"
    weights.write_bytes(weights.read_bytes()[:4000])
    run(folder, display=Lines(stream))
    run(tmp_path / "whole")
    assert toy_job.outcome(folder) == toy_job.outcome(tmp_path / "whole")
    assert "step-000010 is damaged" in stream.getvalue()
    assert "going on from step 5" in stream.getvalue()
    assert "note" in kinds(folder)


def test_a_follower_does_the_same_work_and_writes_nothing(tmp_path: Path) -> None:
    assert run(tmp_path / "none", leader=False)["done"] == 30
    assert not (tmp_path / "none").exists()
    with pytest.raises(UserError):
        run(tmp_path / "run", failing_at(12, UserError("pause")))
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    jobs: list[Toy] = []

    def make() -> Toy:
        jobs.append(Toy(hook=begun.append))
        return jobs[0]

    begun: list[int] = []
    followed = run(tmp_path / "run", make, leader=False)
    assert begun[0] == 11
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before
    assert followed == run(tmp_path / "run")


def test_processes_that_agree_stop_after_the_same_step(tmp_path: Path) -> None:
    asked = iter([False] * 3 + [True])
    with pytest.raises(Interrupted, match=r"at \w+ 4/30 and saved"):
        run(tmp_path / "run", agree=lambda _: next(asked))
    asked = iter([True])
    with pytest.raises(Interrupted, match="segtailor resume"):
        run(tmp_path / "run", agree=lambda _: next(asked), leader=False)


def test_checkpoints_follow_the_policy(tmp_path: Path) -> None:
    def saved(name: str, policy: Policy) -> list[Any]:
        run(tmp_path / name, policy=policy)
        return [
            entry["step"]
            for entry in entries(Layout(tmp_path / name).journal)
            if entry["kind"] == "checkpoint"
        ]

    assert saved("asked", Policy(tensorboard=False)) == [5, 10, 15, 20, 25, 30]
    assert saved("often", Policy(tensorboard=False, every_steps=4)) == [
        4,
        5,
        9,
        10,
        14,
        15,
        19,
        20,
        24,
        25,
        29,
        30,
    ]
    assert saved("always", Policy(tensorboard=False, every_seconds=0)) == list(range(1, 31))


def test_numbers_that_json_cannot_hold_survive_as_nan(tmp_path: Path) -> None:
    class Odd(Toy):
        def steps(self) -> Any:
            self.open = True
            yield Step(phase="train", done=1, metrics={"loss": float("inf"), "rate": 0.5})

        def result(self) -> dict[str, Any]:
            return {"miou": float("nan")}

    assert run(tmp_path / "run", Odd) == run(tmp_path / "run", Odd) == {"miou": None}
    (logged,) = read_steps(tmp_path / "run")
    assert str(dict(logged.step.metrics)) == "{'loss': nan, 'rate': 0.5}"


def test_other_versions_on_resume_are_mentioned(tmp_path: Path) -> None:
    stream = StringIO()
    with pytest.raises(UserError):
        run(tmp_path / "run", failing_at(7, UserError("pause")))
    path = Layout(tmp_path / "run").environment
    path.write_text(path.read_text().replace('"python": "3', '"python": "2'))
    run(tmp_path / "run", display=Lines(stream))
    assert "python 2." in stream.getvalue()


def test_a_recipe_that_cannot_be_built_does_not_claim_the_folder(tmp_path: Path) -> None:
    def mistaken() -> Toy:
        raise UserError("no such teacher")

    with pytest.raises(UserError, match="teacher"):
        run(tmp_path / "run", mistaken, recipe={**RECIPE, "teacher": "nowhere"})
    assert run(tmp_path / "run")["done"] == 30


def test_a_started_run_keeps_its_recipe_when_it_cannot_be_built_again(tmp_path: Path) -> None:
    def mistaken() -> Toy:
        raise UserError("the data is gone")

    with pytest.raises(UserError, match="pause"):
        run(tmp_path / "run", failing_at(2, UserError("pause")))
    with pytest.raises(UserError, match="gone"):
        run(tmp_path / "run", mistaken)
    assert read_recipe(tmp_path / "run") == RECIPE


def test_a_file_is_no_run_directory(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    with pytest.raises(RunProblem, match="is a file"):
        run(tmp_path / "run")
    assert (tmp_path / "run").read_text() == "mine"


@pytest.mark.parametrize("step", [1, 4])
def test_only_a_run_that_got_through_a_step_keeps_its_folder(step: int, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="out of memory"):
        run(tmp_path / "run", failing_at(step, UserError("out of memory; lower the batch")))
    corrected = {**RECIPE, "batch": 1}
    if step == 1:
        assert run(tmp_path / "run", recipe=corrected) == run(tmp_path / "other", recipe=corrected)
    else:
        with pytest.raises(RunProblem, match="batch"):
            run(tmp_path / "run", recipe=corrected)


@pytest.mark.usefixtures("signals_heard")
def test_a_run_within_a_run_that_was_asked_to_stop_stops_after_its_first_step() -> None:
    told: list[str] = []
    with stoppable(lambda: told.append("outer")) as outer:
        signal.raise_signal(signal.SIGTERM)
        with stoppable(lambda: told.append("inner")) as inner:
            assert outer.requested
            assert inner.requested
            signal.raise_signal(signal.SIGTERM)  # an echo of the same wish, as launchers send it
    with stoppable(lambda: told.append("later")) as later:
        assert not later.requested


def everything(folder: Path) -> dict[str, bytes | None]:
    """Return all files (with content) and folders below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize(
    "link",
    ["lock", "journal.jsonl", "checkpoints", "events", "result.json", "environment.json", "stages", "report",
     "weights", "architectures", "supernet", "cost_table.json", "recipe.json", "checkpoints/step-000005",
     "stages/search", "weights/model.onnx"],
)  # fmt: skip
@pytest.mark.parametrize("begun", [True, False])
def test_nothing_is_written_through_links_inside_a_run(tmp_path: Path, link: str, begun: bool) -> None:
    folder, outside = tmp_path / "run", tmp_path / "outside"
    outside.mkdir()
    (outside / "mine.txt").write_text("mine")
    if begun:
        with pytest.raises(UserError, match="pause"):
            run(folder, failing_at(7, UserError("pause")))
    place = folder / link
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.symlink_to(outside / "mine.txt" if "." in link or link == "lock" else outside)
    before = everything(outside)
    with pytest.raises(RunProblem):
        run(folder, policy=Policy())
    assert everything(outside) == before


def test_a_run_directory_that_is_a_link_itself_is_what_its_user_named(tmp_path: Path) -> None:
    (tmp_path / "large-disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "large-disk")
    assert run(tmp_path / "run")["done"] == 30
    assert (tmp_path / "large-disk" / "result.json").exists()


@pytest.mark.parametrize(
    "files",
    [
        {"weights/model.pt": "mine", "events/party.txt": "mine"},
        {"events/2024.ics": "mine"},
        {"result.json": "{}"},
        {"checkpoints/step-000001/state.json": "mine"},
        {"lock": "the combination is 12-34-56"},
        {"journal.jsonl": "dear diary"},
        {"journal.jsonl": '{"event": "mine"}\n'},
        {"environment.json": '{"air": "clean"}'},
        {"stages/first.txt": "mine"},
        {"report/index.html": "mine"},
    ],
)
def test_a_folder_without_a_recipe_is_refused_whatever_its_files_are_called(
    tmp_path: Path, files: dict[str, str]
) -> None:
    for name, content in files.items():
        (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / name).write_text(content)
    before = everything(tmp_path)
    with pytest.raises(RunProblem, match=r"has no recipe\.json.*empty folder"):
        run(tmp_path / "out", policy=Policy())
    assert everything(tmp_path) == before


def test_hidden_files_of_others_survive_a_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for name in (".notes.tmp", ".x.tmp", ".gitignore"):
        (tmp_path / "run" / name).write_text("mine")
    assert run(tmp_path / "run")["done"] == 30
    assert all((tmp_path / "run" / name).read_text() == "mine" for name in (".notes.tmp", ".x.tmp"))


def test_a_view_of_the_journal_written_anew_keeps_files_of_others_beside_it(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with pytest.raises(UserError, match="pause"):
        run(tmp_path / "run", failing_at(7, UserError("pause")), policy=Policy())
    (tmp_path / "run" / "events" / "notes.txt").write_text("mine")
    run(tmp_path / "run", policy=Policy())
    assert (tmp_path / "run" / "events" / "notes.txt").read_text() == "mine"
    assert len(list((tmp_path / "run" / "events").iterdir())) == 2


def test_what_a_failed_start_made_is_gone_but_for_its_journal(tmp_path: Path) -> None:
    class Early(Toy):
        def steps(self) -> Iterator[Step]:
            Layout(tmp_path / "run").stages.mkdir()
            (Layout(tmp_path / "run").stages / "clock.json").write_text("{}")
            raise UserError("no such data")
            yield

    with pytest.raises(UserError, match="no such data"):
        run(tmp_path / "run", Early, policy=Policy())
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "environment.json", "journal.jsonl", "lock",
    ]  # fmt: skip
    assert run(tmp_path / "run", recipe={**RECIPE, "data": "there"})["done"] == 30


@pytest.mark.parametrize("recipe", ['{"cake": {"eggs": 3}}', "[1]", "two eggs", ""])
def test_a_folder_with_some_other_recipe_is_refused_untouched(tmp_path: Path, recipe: str) -> None:
    (tmp_path / "recipe.json").write_text(recipe)
    (tmp_path / "lock").write_text("the combination is 12-34-56")
    before = everything(tmp_path)
    with pytest.raises(RunProblem):
        run(tmp_path)
    assert everything(tmp_path) == before


def test_a_lock_that_is_none_of_ours_is_kept(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="pause"):
        run(tmp_path, failing_at(7, UserError("pause")))
    (tmp_path / "lock").write_text("the combination is 12-34-56")
    with pytest.raises(RunProblem, match="no lock of ours"):
        run(tmp_path)
    assert (tmp_path / "lock").read_text() == "the combination is 12-34-56"
    (tmp_path / "lock").write_bytes(bytes(40))  # as a power cut may leave it
    assert run(tmp_path)["done"] == 30

"""What the user sees, and TensorBoard's view."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from segtailor.core.errors import UserError
from segtailor.core.job import Step
from segtailor.runs import Layout, Lines, Quiet, Terminal, display_for, execute
from segtailor.runs.display import describe
from tests.runs.toy_job import RECIPE, SOURCES, Toy, failing_at


class Screen(StringIO):
    def isatty(self) -> bool:
        return True


class Broken(Screen):
    def write(self, _: str) -> int:
        raise BrokenPipeError


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def step(done: int, **more: Any) -> Step:
    return Step(phase="train [a/b]", done=done, total=100, metrics={"loss": 0.123456}, **more)


def test_lines_come_once_a_second_and_the_last_is_never_lost() -> None:
    stream, clock = StringIO(), Clock()
    lines = Lines(stream, clock=clock)
    lines.open("run x")
    for done in range(1, 26):
        lines.step(step(done))
        clock.now += 0.125
    lines.close()
    written = stream.getvalue().splitlines()
    assert written[0] == "run x"
    assert [line.split()[2] for line in written[1:]] == ["1/100", "9/100", "17/100", "25/100"]
    assert "loss 0.1235" in written[1]


def test_messages_are_never_held_back() -> None:
    stream, clock = StringIO(), Clock()
    lines = Lines(stream, clock=clock)
    lines.open("run x")
    for done in range(3):
        lines.step(step(done, message=f"batch halved {done}", best={"miou": 0.5}))
    assert stream.getvalue().count("batch halved") == 3
    assert "best miou 0.5" in stream.getvalue()


def test_a_terminal_shows_phase_count_metrics_and_messages() -> None:
    stream = Screen()
    terminal = Terminal(Console(file=stream, force_terminal=True, width=100, color_system=None))
    terminal.open("run [x]")
    terminal.step(step(40))
    terminal.step(step(41, message="careful [/now]", best={"miou": 0.5}))
    terminal.close()
    terminal.close()
    shown = stream.getvalue()
    for part in ("run [x]", "train [a/b]", "41/100", "loss 0.1235", "best miou 0.5", "careful [/now]"):
        assert part in shown
    assert shown.rstrip().endswith("\x1b[?25h")  # the cursor is back


def test_the_display_fits_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(display_for(Screen()), Terminal)
    assert isinstance(display_for(Screen(), json=True), Lines)
    assert isinstance(display_for(StringIO()), Lines)
    assert isinstance(display_for(Screen(), quiet=True), Quiet)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(display_for(Screen()), Lines)


@pytest.mark.parametrize("json", [True, False])
def test_nobody_looking_does_not_stop_a_run(tmp_path: Path, json: bool) -> None:
    assert execute(Toy, tmp_path / "run", RECIPE, display=display_for(Broken(), json=json))["done"] == 30


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Read events in a process of their own: the reader imports far more than the writer."""
    code = (
        "import json, sys\n"
        "from tensorboard.backend.event_processing.event_file_loader import EventFileLoader\n"
        "from pathlib import Path\n"
        "from tensorboard.util import tensor_util\n"
        "found = {}\n"
        "for path in Path(sys.argv[1]).iterdir():\n"
        "    for event in EventFileLoader(str(path)).Load():\n"
        "        for value in event.summary.value:\n"
        "            number = float(tensor_util.make_ndarray(value.tensor))\n"
        "            found.setdefault(value.tag, []).append((event.step, number))\n"
        "print(json.dumps(found))\n"
    )
    command = [sys.executable, "-c", code, str(folder)]
    return dict(json.loads(subprocess.run(command, capture_output=True, check=True).stdout))


def test_tensorboard_shows_every_step_once_also_after_resume(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with pytest.raises(UserError):
        execute(failing_at(12, UserError("pause")), tmp_path / "run", RECIPE)
    execute(Toy, tmp_path / "run", RECIPE)
    found = scalars(Layout(tmp_path / "run").events)
    assert sorted(found) == ["train/loss", "val/loss"]
    assert sorted(number for values in found.values() for number, _ in values) == list(range(1, 31))
    assert all(math.isfinite(value) for values in found.values() for _, value in values)


def test_runs_need_no_torch() -> None:
    code = (
        "import sys, segtailor.runs\nfrom segtailor.runs.session import open_events\nfrom pathlib import Path\n"
        "view = open_events(Path(sys.argv[1]), [])\nview and view.close()\nsys.exit('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, "/dev/null/nowhere"]
    assert subprocess.run(command, env={"PYTHONPATH": SOURCES}, check=False).returncode == 0


def test_the_time_that_is_left_reads_as_a_time() -> None:
    step = Step(phase="search", done=3, total=9, metrics={"seconds_left": 125.4, "front": 2.0})
    assert describe(step) == "search 3/9 (33 %)  left 0:02:05  front 2"

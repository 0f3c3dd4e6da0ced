"""Stopped at every boundary and within every stage, and resumed each time, a tailoring ends with the same network."""

import re
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from segtailor.core.codec import read_json
from segtailor.core.errors import Interrupted
from segtailor.runs import Context, Quiet
from segtailor.tailoring.job import STAGE_NAMES
from segtailor.tailoring.recipe import TailorRecipe
from segtailor.verbs.resume import resume
from tests.tailoring.test_end_to_end import TINY, tiny

RUNS = ("search", "teacher", "train", "baselines")  # stages that hold runs, which save as they go
MOMENT = 0.05  # seconds of work below which a stage has no middle: int8, where the runtime has none
TRIES = 6  # to hit a stage in its middle
DELIVERED = ("export", "int8", "contract", "layers")
LOOSE = 1000.0  # milliseconds
VOLATILE = ("ms", "seconds", "cost", "used")  # endings of names of what is measured


class Watching(Quiet):
    """Notes how much work (seconds of CPU time) each stage is; a display, because displays hear which stage begins."""

    def __init__(self) -> None:
        self.stage = ""
        self.work: dict[str, float] = {}
        self._since = time.process_time()

    def message(self, text: str) -> None:
        if text.startswith("stage "):
            self.work[self.stage] = time.process_time() - self._since
            self.stage, self._since = text.rpartition(" ")[2], time.process_time()


class Stopping(Watching):
    """Presses Ctrl-C in one stage: as it begins, after some of its work, or politely as a run in it begins."""

    def __init__(self, stage: str, *, after: float | None = None, politely: bool = False) -> None:
        super().__init__()
        self._where, self._after, self._politely = stage, after, politely

    def message(self, text: str) -> None:
        if not text.startswith("stage "):
            return
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        before = self.stage
        super().message(text)
        if before == self._where != self.stage:
            raise KeyboardInterrupt  # too late: the stage is over
        if self.stage == self._where and self._after is not None:
            signal.setitimer(signal.ITIMER_VIRTUAL, self._after)
        elif self.stage == self._where and not self._politely:
            raise KeyboardInterrupt  # what a second Ctrl-C does: everything stops at once

    def open(self, title: str) -> None:
        if self.stage == self._where and self._politely and title.startswith("run "):
            signal.raise_signal(signal.SIGINT)  # a first Ctrl-C: asks to stop after this step, and saves


@pytest.fixture(autouse=True)
def _alarms_are_a_second_ctrl_c(signals_heard: None) -> Iterator[None]:
    """CPU time is what is waited for, because that does not depend on who else works on the machine."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(number, frame)

    before = signal.signal(signal.SIGVTALRM, stop)
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)


def interrupted(plan: TailorRecipe, context: Context, display: Stopping) -> None:
    """Go on until the interruption, which must come."""
    with pytest.raises(Interrupted, match="segtailor resume"):
        begin_or_go_on(plan, replace(context, display=display))
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def stop_in(stage: str, plan: TailorRecipe, context: Context, *, work: float) -> None:
    """Stop as a stage begins, where it holds a run so that this is saved, and in its middle if it has one."""
    interrupted(plan, context, Stopping(stage))
    if stage in RUNS:  # first, because a run that is finished is not opened again
        interrupted(plan, context, Stopping(stage, politely=True))
    if work > MOMENT:
        interrupted_within(plan, context, stage=stage, work=work)
    assert not (context.folder / "stages" / f"{stage}.json").exists()


def interrupted_within(plan: TailorRecipe, context: Context, *, stage: str, work: float) -> None:
    """Interrupt a stage half-way; one that was quicker this time is undone and interrupted earlier."""
    folder = context.folder
    file = folder / "stages" / f"{stage}.json"
    for part in range(1, TRIES):
        try:
            interrupted(plan, context, Stopping(stage, after=max(1e-3, work / 2**part)))
        except pytest.fail.Exception:  # the last stage was over before the alarm, and with it everything
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            (folder / "result.json").unlink()
        if not file.exists():
            return
        file.unlink()
    raise AssertionError(f"stage '{stage}' could not be interrupted")


def begin_or_go_on(plan: TailorRecipe, context: Context) -> dict[str, Any]:
    begun = (context.folder / "recipe.json").exists()
    return dict(resume(context.folder, context=context) if begun else plan.carry_out(context))


def stable(value: Any, folder: Path) -> Any:
    """Return what must not depend on the moment: all but what was measured, and where it lies."""
    if isinstance(value, dict):
        return {key: stable(held, folder) for key, held in value.items() if not key.endswith(VOLATILE)}
    if isinstance(value, list):
        return [stable(held, folder) for held in value]
    if isinstance(value, str):
        return re.sub(r"[\d.]+ ms", "some ms", value.replace(str(folder), "RUN"))
    return value


def outcome(folder: Path, name: str) -> dict[str, Any]:
    found = read_json(folder / "stages" / f"{name}.json", what=name, error=ValueError)
    return dict(stable(found, folder))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_stopped_at_every_boundary_and_within_every_stage_it_ends_the_same(tmp_path: Path) -> None:
    """Caches of their own let the second one make its own pack and judge candidates again; the budget is so loose that
    nothing hangs on a measured latency, the runtime one that needs no export to measure."""
    torch.set_num_threads(1)
    whole, parts, watch = tmp_path / "whole", tmp_path / "parts", Watching()
    first_context, second_context = (
        Context(cache=tmp_path / f"cache-{folder.name}", device="cpu", folder=folder)
        for folder in (whole, parts)
    )
    plan = tiny(first_context, system="dilated", runtime="eager", budget_ms=LOOSE)
    plan = replace(plan, effort=replace(TINY, fit_seconds=0.0), search_limit_ms=LOOSE)
    first = dict(plan.carry_out(replace(first_context, display=watch)))
    watch.message("stage end")
    for name in STAGE_NAMES:
        stop_in(name, plan, second_context, work=watch.work[name])
    last = begin_or_go_on(plan, second_context)
    assert stable(first, whole) == stable(last, parts)
    for name in (
        "data",
        "choose",
        "ready",
        "teacher",
        "lengths",
        "train",
        "baselines",
        "recommend",
        "export",
    ):
        assert outcome(whole, name) == outcome(parts, name)
    assert outcome(whole, "search")["trials"] == outcome(parts, "search")["trials"]
    assert outcome(whole, "layers")["layers"].keys() == outcome(parts, "layers")["layers"].keys()
    files = sorted(path.relative_to(whole) for path in whole.rglob("model.safetensors"))
    assert len(files) == 4  # teacher, student beside it, winner, baseline
    for file in files:
        assert (whole / file).read_bytes() == (parts / file).read_bytes(), file


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_files_of_a_runtime_are_the_same_after_interruptions_of_their_making(tmp_path: Path) -> None:
    """What is delivered is undone and made again, interrupted. Whether int8 pays is measured, so that may differ."""
    torch.set_num_threads(1)
    folder, watch = tmp_path / "run", Watching()
    context = Context(cache=tmp_path / "cache", device="cpu", folder=folder)
    plan = tiny(context, budget_ms=LOOSE)
    first = dict(plan.carry_out(replace(context, display=watch)))
    watch.message("stage end")
    before = {name: outcome(folder, name) for name in DELIVERED}
    model = Path(first["model"])
    exported = (model / "model.onnx").read_bytes()
    made = [folder / "stages" / f"{name}.json" for name in DELIVERED]
    for file in (folder / "result.json", *made, *model.glob("*.onnx"), *model.glob("verify*.json")):
        file.unlink()
    for name in DELIVERED:
        stop_in(name, plan, context, work=watch.work[name])
    last = begin_or_go_on(plan, context)
    assert (model / "model.onnx").read_bytes() == exported
    assert before["export"] == outcome(folder, "export")
    assert before["int8"]["decided"] == outcome(folder, "int8")["decided"]
    assert (first["network"], first["met"]) == (last["network"], last["met"])

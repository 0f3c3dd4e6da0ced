"""Stopped at every boundary and within every stage, and resumed each time, a tailoring ends with the same network."""

import re
import signal
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import segtailor
from segtailor.api.training import Surroundings
from segtailor.core.codec import read_json
from segtailor.core.errors import Interrupted
from segtailor.core.job import Step
from segtailor.runs import Quiet
from segtailor.tailoring.job import STAGES
from segtailor.tailoring.run import carry_out, go_on
from segtailor.tailoring.settings import TailorRecipe
from tests.tailoring.test_end_to_end import TINY, tiny

NAMES = [name for name, _ in STAGES]
RUNS = ("pack", "search", "teacher", "train", "baselines")  # stages that hold runs, which save as they go
PACKAGE = str(Path(segtailor.__file__).parent)
VOLATILE = ("ms", "seconds", "cost")  # endings of names of what is measured


class Watching(Quiet):
    """Counts the calls of our functions in each stage; a display, because displays hear which stage begins."""

    def __init__(self) -> None:
        self.stage = ""
        self.calls: Counter[str] = Counter()

    def message(self, text: str) -> None:
        if text.startswith("stage "):
            self.stage = text.rpartition(" ")[2]
            sys.setprofile(self._called)

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self.calls[self.stage] += 1
            self.called()

    def called(self) -> None:
        """See one call."""


class Stopping(Watching):
    """Presses Ctrl-C once in one stage: as it begins, at a call within it, or politely as a run in it begins."""

    def __init__(self, stage: str, *, at: int | None = None, politely: bool = False) -> None:
        super().__init__()
        self._where, self._at, self._politely = stage, at, politely
        self.fired = False

    def message(self, text: str) -> None:
        super().message(text)
        if self.stage == self._where and self._at is None and not self._politely:
            self._stop()

    def called(self) -> None:
        if self.stage == self._where and self._at is not None and self.calls[self.stage] >= self._at:
            self._stop()

    def open(self, title: str) -> None:
        if self.stage == self._where and self._politely and not self.fired and title.startswith("run "):
            self.fired = True
            signal.raise_signal(signal.SIGINT)  # asks to stop after this step; saves

    def step(self, step: Step) -> None:
        """Nothing to show."""

    def _stop(self) -> None:
        sys.setprofile(None)
        if not self.fired:
            self.fired = True
            raise KeyboardInterrupt  # what a second Ctrl-C does: stops at once


def interrupted(plan: TailorRecipe, folder: Path, around: Surroundings, display: Stopping) -> None:
    """Go on until the interruption, which must come."""
    try:
        with pytest.raises(Interrupted, match="segtailor resume"):
            begin_or_go_on(plan, folder, replace(around, display=display))
    finally:
        sys.setprofile(None)
    assert display.fired


def begin_or_go_on(plan: TailorRecipe, folder: Path, around: Surroundings) -> dict[str, Any]:
    begun = (folder / "recipe.json").exists()
    return dict(go_on(folder, around) if begun else carry_out(plan, folder, around))


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
@pytest.mark.timeout(900)
def test_stopped_at_every_boundary_and_within_every_stage_it_ends_the_same(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    # Caches of their own, so that the second one makes a pack and judges candidates again; and a budget so loose that
    # nothing hangs on a measured latency. Whether int8 pays is measured, so what follows from it is not compared.
    places = [Surroundings(cache=tmp_path / f"cache{number}", device="cpu") for number in range(2)]
    whole, parts, watch = tmp_path / "whole", tmp_path / "parts", Watching()
    plan = tiny(places[0], whole, budget_ms=1000.0)
    plan = replace(plan, effort=replace(TINY, pack_minutes=0.02, pack_networks=2), search_limit_ms=1000.0)
    try:
        first = dict(carry_out(plan, whole, replace(places[0], display=watch)))
    finally:
        sys.setprofile(None)
    for name in NAMES:
        stops = [Stopping(name), Stopping(name, at=watch.calls[name] // 2)]
        stops += [Stopping(name, politely=True)] if name in RUNS else []
        for display in stops:
            interrupted(plan, parts, places[1], display)
            assert not (parts / "stages" / f"{name}.json").exists()
    last = begin_or_go_on(plan, parts, places[1])
    for key in ("network", "met", "search_worth_it", "budget_ms"):
        assert first[key] == last[key]
    for name in ("data", "choose", "teacher", "train", "baselines", "recommend", "export"):
        assert outcome(whole, name) == outcome(parts, name)
    assert outcome(whole, "search")["trials"] == outcome(parts, "search")["trials"]
    assert outcome(whole, "layers")["layers"].keys() == outcome(parts, "layers")["layers"].keys()
    files = sorted(path.relative_to(whole) for path in whole.rglob("model.safetensors"))
    assert len(files) == 3  # teacher, winner, baseline
    for file in files:
        assert (whole / file).read_bytes() == (parts / file).read_bytes(), file

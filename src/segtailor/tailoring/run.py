"""Plan a tailoring, show what it will do, and do it: the function behind `segtailor tailor`."""

from __future__ import annotations

import re
import time as clock
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import segtailor.spaces  # noqa: F401 - registers the families
from segtailor.core.codec import Json, to_json
from segtailor.core.errors import RunProblem, UserError
from segtailor.core.job import Step
from segtailor.core.target import parse_budget_ms, parse_target
from segtailor.recipes.recipe import parse_recipe, recipe_document
from segtailor.runs import Context, Display, Layout, Quiet, check_place, execute, read_recipe
from segtailor.tailoring.choosing import choose
from segtailor.tailoring.facts import data_facts, usable
from segtailor.tailoring.job import Tailoring
from segtailor.tailoring.machine import MeasuredMachine
from segtailor.tailoring.pacing import expected_seconds
from segtailor.tailoring.settings import Request, TailorRecipe
from segtailor.targets.runtime import runtime_for
from segtailor.verbs.report import report

DATA = "synthetic:size=128x256,train=240,val=40,seed=0"  # what there is without any argument
TARGET, BUDGET, SECONDS = "cpu/onnxruntime/fp32", "5ms", 270.0
UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def tailor(  # noqa: PLR0913 - the one function that everybody calls: its arguments are the command's flags
    data: str | None = None,
    target: str = TARGET,
    budget: str | float | None = None,
    *,
    out: str | Path,
    recipe: str = "auto",
    time: str | float | None = None,
    image: tuple[int, int] | None = None,
    seed: int = 0,
    surroundings: Context | None = None,
) -> dict[str, Json]:
    """Make a network for a dataset, a target and a budget (milliseconds or e.g. "60fps"), in the run directory `out`.

    Without data the embedded street scenes are used. `time` (seconds or e.g. "2h") is how long it may take. The same
    call in the same folder goes on where it stopped.
    """
    around = surroundings or Context()
    request = requested(data, target, budget, recipe=recipe, time=time, image=image, seed=seed)
    return carry_out(planned(request, Path(out), around), Path(out), around)


def requested(
    data: str | None,
    target: str,
    budget: str | float | None,
    *,
    recipe: str = "auto",
    time: str | float | None = None,
    image: tuple[int, int] | None = None,
    seed: int = 0,
) -> Request:
    """Turn what a user gives into a request; the embedded data brings its own budget and time."""
    if data is not None and budget is None:
        raise UserError(
            "a budget is missing: how long may one picture take? Give for example --budget 30fps."
        )
    seconds = parse_seconds(time) if isinstance(time, str) else time
    if data is None and seconds is None:
        seconds = SECONDS
    asked = BUDGET if budget is None else budget
    place = parse_target(target)
    runtime_for(place)  # refuses what cannot run here before any work
    return Request(
        data=data or DATA,
        target=str(place),
        budget_ms=parse_budget_ms(asked) if isinstance(asked, str) else float(asked),
        recipe=recipe,
        seconds=seconds,
        image=image,
        seed=seed,
    )


def planned(request: Request, folder: Path, around: Context) -> TailorRecipe:
    """Return the recipe that is in the folder, if it is for this request; otherwise look, measure and choose."""
    if Layout(folder).recipe.exists():
        kept = stored(folder)
        differing = [
            f"{name}: {before} there, {now} asked"
            for name, before, now in _differences(to_json(kept.request), to_json(request))
        ]
        if differing:
            raise RunProblem(
                f"{folder} holds another tailoring ({'; '.join(differing)}). Choose another folder, or resume that one."
            )
        return kept
    check_place(folder)  # a folder that cannot be used is told before minutes of work
    begin = clock.monotonic()
    found = usable(request.data)
    facts = data_facts(found.data, around.cache)
    place = MeasuredMachine(request=request, data=found.data, around=around)
    recipe = choose(request, facts, place, data=found.data)
    return replace(recipe, planning_seconds=round(clock.monotonic() - begin, 1))


def carry_out(recipe: TailorRecipe, folder: Path, around: Context) -> dict[str, Json]:
    """Do the stages that are not done yet; a finished tailoring just returns its result."""
    place = Context(folder=folder, cache=around.cache, device=around.device)
    result = execute(
        lambda: Tailoring(recipe=recipe, place=place, around=around),
        folder,
        recipe_document(recipe),
        display=Outline(around.display or Quiet()),
        policy=around.policy,
    )
    report([folder])  # once more: only now the run is finished, and says so
    return result


def go_on(folder: Path, around: Context) -> dict[str, Json]:
    """Carry out the tailoring that a folder holds."""
    return carry_out(stored(folder), folder, around)


def is_tailoring(folder: Path) -> bool:
    """Tell whether a run directory is that of a tailoring."""
    return Layout(folder).recipe.exists() and read_recipe(folder).get("kind") == "tailor"


def stored(folder: Path) -> TailorRecipe:
    """Return the recipe of a tailoring's run directory."""
    recipe = parse_recipe(read_recipe(folder), what=f"recipe of {folder}")
    if not isinstance(recipe, TailorRecipe):
        raise RunProblem(f"{folder} is a run of another kind; resume it, or choose another folder.")
    return recipe


def described(recipe: TailorRecipe) -> dict[str, Any]:
    """Return what would be done: every choice with its reason, and the time it is expected to take."""
    return {
        "request": to_json(recipe.request),
        "choices": [to_json(choice) for choice in recipe.choices],
        "estimate_seconds": round(expected_seconds(recipe), 1),
    }


def parse_seconds(text: str) -> float:
    """Read a time such as `90s`, `30m` or `2h`."""
    match = re.fullmatch(r"\s*(\d{1,12}(?:\.\d{1,12})?)\s*(s|m|min|h)\s*", text.lower())
    if match is None:
        raise UserError(f"--time {text}: this is no time above zero; write for example 30m or 2h.")
    return float(match[1]) * UNITS[match[2]]


class Outline:
    """Passes on what must be told; progress is shown by the stages themselves."""

    def __init__(self, display: Display) -> None:
        self._display = display

    def open(self, title: str) -> None:
        """Begin."""
        self._display.message(title)

    def step(self, step: Step) -> None:
        """Tell what a stage has to say."""
        if step.message:
            self._display.message(step.message)

    def message(self, text: str) -> None:
        """Say something."""
        self._display.message(text)

    def close(self) -> None:
        """End."""


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    return [(name, before.get(name), now[name]) for name in now if before.get(name) != now[name]]

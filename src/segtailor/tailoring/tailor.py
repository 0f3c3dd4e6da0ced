"""`segtailor tailor`: from images with masks, a device and a budget to a network that keeps it."""

from __future__ import annotations

import re
import time as clock
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from segtailor.core.codec import Json as JsonValue
from segtailor.core.codec import to_json
from segtailor.core.errors import RunProblem, UserError
from segtailor.core.target import parse_budget_ms, parse_target
from segtailor.runs import Context, Layout, check_place, read_recipe
from segtailor.tailoring.recipe import TailorRecipe, TailorRequest
from segtailor.verbs.options import DryRun, Json, Seed, Size, Words
from segtailor.verbs.output import emit, note, reading_result, with_display

EXAMPLE_DATA = "synthetic:size=128x256,train=240,val=40,seed=0"  # used if no data is given
EXAMPLE_BUDGET, EXAMPLE_SECONDS = "5ms", 270.0  # defaults for it
TARGET = "cpu/onnxruntime/fp32"
UNIT_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}

SystemName = Literal[
    "auto", "fasterseg", "squeezenas", "autortnet", "auxcells", "lpsnet", "dilated", "elastic"
]


def tailor_(
    *,
    data: str | None = None,
    target: str = TARGET,
    budget: Words | None = None,
    recipe: SystemName = "auto",
    time: Words | None = None,
    image: Size | None = None,
    seed: Seed = 0,
    start: str = "auto",
    out: Path = Path("runs/tailored"),
    context: Annotated[Context, Parameter(name="*")] = Context(),
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Make a network for your data, your device and your budget; without arguments, for embedded street scenes.

    Networks are searched and trained beside ready ones; the best that keeps the budget is exported and proved equal.
    The exit code is 1 if none keeps it.

    Parameters
    ----------
    data:
        Images with masks or annotations, e.g. `folder:PATH`, `coco:PATH`, `camvid:PATH`.
    target:
        Where the network will run: device/runtime/precision.
    budget:
        How long one picture may take, e.g. 12ms or 60fps.
    recipe:
        The search system; auto chooses.
    time:
        How long all of it may take, e.g. 30m or 2h.
    image:
        Size HEIGHTxWIDTH of the pictures in use; that of the data by default.
    seed:
        Of search and trainings.
    start:
        Where the weights of all networks come from: auto (the best at hand), none (random), a name of
        `segtailor list starts`, or the path of a bundle, a run directory or a published checkpoint.
    out:
        Run directory. The same command in the same folder goes on where it stopped.
    """
    from segtailor.spaces.starts import start_warning

    placed = _placed(with_display(context, json=json), out)
    request = parse_request(
        data, target, budget, recipe=recipe, time=time, image=image, seed=seed, start=start
    )
    planned = plan(request, placed)
    facts = describe_plan(planned)
    for choice in planned.choices:
        note(f"{choice.setting:>10}: {choice.value} - {choice.reason}")
    warning = start_warning(request.start)
    if warning:
        note(warning)
    note(f"expected to take about {facts['estimate_seconds'] / 60:.1f} minutes")
    if dry_run:
        emit({"run": str(out), **facts}, lambda _: None, json=json)
        return 0
    with reading_result(out):
        result = planned.carry_out(placed)
        emit(result, lambda printer: printer.say(*_summary(result)), json=json)
    return 0 if result.get("met") else 1


def tailor(
    data: str | None = None,
    target: str = TARGET,
    budget: str | float | None = None,
    *,
    out: str | Path,
    recipe: str = "auto",
    time: str | float | None = None,
    image: tuple[int, int] | None = None,
    seed: int = 0,
    start: str = "auto",
    context: Context | None = None,
) -> dict[str, JsonValue]:
    """Make a network for a dataset, a target and a budget (milliseconds or e.g. "60fps"), in the run directory `out`.

    Without data the embedded street scenes are used. `time` (seconds or e.g. "2h") is how long it may take. The same
    call in the same folder continues what is there.
    """
    placed = _placed(context or Context(), Path(out))
    request = parse_request(
        data, target, budget, recipe=recipe, time=time, image=image, seed=seed, start=start
    )
    return plan(request, placed).carry_out(placed)


def parse_request(
    data: str | None,
    target: str,
    budget: str | float | None,
    *,
    recipe: str = "auto",
    time: str | float | None = None,
    image: tuple[int, int] | None = None,
    seed: int = 0,
    start: str = "auto",
) -> TailorRequest:
    """Return what a user asks for; the embedded data has a default budget and time."""
    from segtailor.targets.runtime import runtime_for

    if data is not None and budget is None:
        raise UserError(
            "a budget is missing: how long may one picture take? Give for example --budget 30fps."
        )
    seconds = parse_seconds(time) if isinstance(time, str) else time
    if data is None and seconds is None:
        seconds = EXAMPLE_SECONDS
    limit = EXAMPLE_BUDGET if budget is None else budget
    parsed = parse_target(target)
    runtime_for(parsed)  # refuses what cannot run here before any work
    return TailorRequest(
        data=data or EXAMPLE_DATA,
        target=str(parsed),
        budget_ms=parse_budget_ms(limit) if isinstance(limit, str) else float(limit),
        recipe=recipe,
        seconds=seconds,
        image=image,
        seed=seed,
        start=start,
    )


def parse_seconds(text: str) -> float:
    """Read a time such as `90s`, `30m` or `2h`."""
    match = re.fullmatch(r"\s*(\d{1,12}(?:\.\d{1,12})?)\s*(s|m|min|h)\s*", text.lower())
    if match is None:
        raise UserError(f"--time {text}: this is no time above zero; write for example 30m or 2h.")
    return float(match[1]) * UNIT_SECONDS[match[2]]


def plan(request: TailorRequest, context: Context) -> TailorRecipe:
    """Return the recipe in `context.folder`, if it is for this request; otherwise examine, measure and choose."""
    if Layout(context.folder).recipe.exists():
        return _stored_recipe(request, context.folder)
    from segtailor.tailoring.choosing import choose, usual_system
    from segtailor.tailoring.facts import data_facts, usable_data
    from segtailor.tailoring.machine import MeasuredMachine

    check_place(context.folder)  # before minutes of work
    begin = clock.monotonic()
    usable = usable_data(request.data)
    facts = data_facts(usable.data, usable.dataset, context.cache_folder)
    machine = MeasuredMachine(
        system=usual_system(request),
        target=request.target,
        data=usable.data,
        dataset=usable.dataset,
        context=context,
    )
    recipe = choose(request, facts, machine, data=usable.data)
    return replace(recipe, planning_seconds=round(clock.monotonic() - begin, 1))


def describe_plan(recipe: TailorRecipe) -> dict[str, Any]:
    """Return what would be done: every choice with its reason, and the time it is expected to take."""
    from segtailor.tailoring.time_plan import expected_seconds

    return {
        "request": to_json(recipe.request),
        "choices": [to_json(choice) for choice in recipe.choices],
        "estimate_seconds": round(expected_seconds(recipe), 1),
    }


def _placed(context: Context, folder: Path) -> Context:
    """Return the context of a tailoring; its stages follow from files of its folder, which may be somebody else's."""
    return replace(context, folder=folder, trusted=False)


def _stored_recipe(request: TailorRequest, folder: Path) -> TailorRecipe:
    """Return the recipe of a run directory; another request than the one it was made for is refused."""
    from segtailor.recipes.recipe import parse_recipe

    recipe = parse_recipe(read_recipe(folder), what=f"recipe of {folder}")
    if not isinstance(recipe, TailorRecipe):
        raise RunProblem(f"{folder} is a run of another kind; resume it, or choose another folder.")
    there, asked = to_json(recipe.request), to_json(request)
    differences = [
        f"{name}: {there.get(name)} there, {value} asked"
        for name, value in asked.items()
        if there.get(name) != value
    ]
    if differences:
        raise RunProblem(
            f"{folder} holds another tailoring ({'; '.join(differences)}). Choose another folder, or resume that one."
        )
    return recipe


def _summary(result: Mapping[str, Any]) -> list[str]:
    lines = [str(result["verdict"])]
    if result.get("model"):
        lines += [f"model:  {result['model']}", f"file:   {result['file']}"]
    return [*lines, f"report: {result['report']}"]

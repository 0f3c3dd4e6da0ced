"""`segtailor tailor`: from images with masks, a device and a budget to a network that keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from segtailor.cli.options import DryRun, Json, Seed, Size, Words
from segtailor.cli.output import emit, note, reading_kept
from segtailor.cli.surroundings import Where

System = Literal["auto", "fasterseg", "squeezenas", "autortnet", "auxcells", "lpsnet", "dilated"]


def tailor_(
    *,
    data: str | None = None,
    target: str = "cpu/onnxruntime/fp32",
    budget: Words | None = None,
    recipe: System = "auto",
    time: Words | None = None,
    image: Size | None = None,
    seed: Seed = 0,
    out: Path = Path("runs/tailored"),
    where: Annotated[Where, Parameter(name="*")] = Where(),
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Make a network for your data, your device and your budget; without arguments, for embedded street scenes.

    Networks are searched and trained beside ready ones; the best that keeps the budget is exported and proved equal.
    The exit code is 1 if none keeps it.

    Parameters
    ----------
    data:
        Images with masks, e.g. `folder:PATH`, `camvid:PATH`.
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
    out:
        Run directory. The same command in the same folder goes on where it stopped.
    """
    from segtailor.tailoring import run

    around = where.surroundings(json=json)
    request = run.requested(data, target, budget, recipe=recipe, time=time, image=image, seed=seed)
    plan = run.planned(request, out, around)
    _tell(facts := run.described(plan))
    if dry_run:
        emit({"run": str(out), **facts}, lambda _: None, json=json)
        return 0
    with reading_kept(out):
        result = run.carry_out(plan, out, around)
        emit(result, lambda printer: printer.say(*summary(result)), json=json)
    return 0 if result.get("met") else 1


def summary(result: Mapping[str, Any]) -> list[str]:
    """Say in a few lines what came of it."""
    lines = [str(result["verdict"])]
    if result.get("model"):
        lines += [f"model:  {result['model']}", f"file:   {result['file']}"]
    return [*lines, f"report: {result['report']}"]


def _tell(facts: Mapping[str, Any]) -> None:
    for choice in facts["choices"]:
        note(f"{choice['setting']:>10}: {choice['value']} - {choice['reason']}")
    note(f"expected to take about {facts['estimate_seconds'] / 60:.1f} minutes")

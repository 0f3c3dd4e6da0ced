"""The stages that find a network: the data's doctor, the device pack, the fastest network, the search, the choice."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from segtailor.api.calibration import pack_name
from segtailor.api.networks import architectures, count, resolve
from segtailor.api.training import CHECKED
from segtailor.core.errors import UserError
from segtailor.core.space import family_of
from segtailor.costs import Macs
from segtailor.costs.pack import Use, read_pack
from segtailor.data.doctor import examine
from segtailor.data.locate import locate
from segtailor.recipes.calibrating import CalibrateRecipe
from segtailor.recipes.candidates import ready_networks
from segtailor.runs import Layout
from segtailor.spaces import baselines as handmade
from segtailor.tailoring.context import Context
from segtailor.tailoring.searches import search_recipe

FASTEST = 4  # networks measured to know what the target can do at all
MEASURED = 8  # candidates of a search that are measured whole before one is chosen
SLACK = 0.95  # of the budget that a chosen network may take before it is trained
LOOKING = 0.07  # of the time asked for, to find out which ready networks keep the budget
KIN, OTHERS = (
    1.3,
    3.0,
)  # work that a ready network may do in the time of the winner's, by whether it is of its family


def data(context: Context) -> dict[str, Any]:
    """Examine the data as it was given."""
    found = examine(lambda: locate(context.recipe.request.data), limit=CHECKED)
    return {**found.document(), "used": context.recipe.data}


def fastest(context: Context) -> dict[str, Any]:
    """Measure the smallest ready networks: if half of the runs of each are too slow, no search can help."""
    image = context.recipe.image
    smallest = sorted(architectures(), key=lambda name: count(name, image=image).macs)[:FASTEST]
    rows: list[dict[str, Any]] = [{"network": name, **context.look(name)} for name in smallest]
    best = min(rows, key=lambda row: row["median_ms"])
    return {"networks": rows, **best, "possible": best["median_ms"] <= context.recipe.request.budget_ms}


def pack(context: Context) -> dict[str, Any]:
    """Take the device pack of an earlier tailoring on this machine, or make one, unless there is no time for it."""
    recipe, effort = context.recipe, context.recipe.effort
    if not effort.pack_minutes:
        return {"pack": None, "made": False}
    space = search_recipe(context, pack=None).space
    classes = locate(recipe.data).task.outputs
    calibration = CalibrateRecipe(
        space=space.kind,
        target=recipe.request.target,
        image=recipe.image,
        classes=classes,
        minutes=effort.pack_minutes,
        fit_networks=min(4 if effort.pack_networks < 10 else 10, effort.pack_networks),
        trust_networks=effort.pack_networks,
        settings=dict(space.settings),
    )
    kept = context.around.cache / "packs" / pack_name(calibration)
    use = Use(space=space.kind, image=recipe.image, classes=classes, target=recipe.request.target)
    if kept.is_file() and _fits(kept, use):
        return {"pack": str(kept), "made": False, **read_pack(kept, use=use).summary()}
    begun = context.begun("pack")
    found = context.carry_out(calibration, "pack")
    if not begun:  # what was measured before may be somebody else's word, and other tailorings would take it
        kept.parent.mkdir(parents=True, exist_ok=True)
        read_pack(Layout(context.run_folder("pack")).cost_table).write(kept)
    return {**found, "made": True}


def search(context: Context) -> dict[str, Any]:
    """Search networks that keep the budget."""
    pack = context.outcomes["pack"]["pack"]
    recipe = search_recipe(context, pack=None if pack is None else Path(pack), priced=True)
    found = context.carry_out(recipe, "search")
    kept = {member["trial"]: member for member in [found, *_members(found)]}
    return {
        "run": str(context.run_folder("search")),
        "found": [
            {key: member.get(key) for key in ("trial", "fingerprint", "quality", "cost")}
            for member in kept.values()
            if member.get("quality") is not None
        ],
        "trials": len(found["trials"]),
        "strategy": recipe.strategy.kind,
        "unit": found["unit"],
        "teacher": found.get("roles", {}).get("teacher", {}).get("architecture"),
    }


def choose(context: Context) -> dict[str, Any]:
    """Measure what was found whole, best first, and take the first that keeps the budget with some slack."""
    layout = Layout(Path(context.outcomes["search"]["run"]))
    found = sorted(context.outcomes["search"]["found"], key=lambda row: -row["quality"])[:MEASURED]
    rows = []
    for row in found:
        file = layout.architecture(row["fingerprint"])
        rows.append({**row, "architecture": str(file), **context.look(str(file))})
        if rows[-1]["p95_ms"] <= SLACK * context.recipe.request.budget_ms:
            return {**rows[-1], "measured": rows, "kept": True}
    if not rows:
        raise UserError("the search found no network that works; see its journal, or give it more time.")
    return {**min(rows, key=lambda row: row["p95_ms"]), "measured": rows, "kept": False}


def ready(context: Context) -> dict[str, Any]:
    """Find the ready networks that are worth training: within the budget as measured, the best expected first.

    At least one is hand-made where any keeps the budget. What the target is known to run in time needs no other look.
    """
    wanted, asked = context.recipe.effort.baselines, context.recipe.request.seconds
    until = None if asked is None else time.monotonic() + LOOKING * asked
    found: list[dict[str, Any]] = []
    names = _worth_a_look(context) if wanted else []
    for group in (
        [name for name in names if name in handmade()],
        [name for name in names if name not in handmade()],
    ):
        few = wanted - len(found) if found else max(1, wanted // 2)
        found += _fitting(context, group, few if wanted else 0, until=until)
    return {"networks": found}


def _worth_a_look(context: Context) -> list[str]:
    """Return the ready networks that do not do far more work than fits the budget, the best expected first."""
    recipe, chosen = context.recipe, context.outcomes["choose"]
    winner, classes = resolve(chosen["architecture"]), locate(recipe.data).task.outputs
    likely = count(winner, image=recipe.image).macs * max(1.0, recipe.request.budget_ms / chosen["median_ms"])
    return [
        row.name
        for row in ready_networks(Macs(), OTHERS * likely, image=recipe.image, classes=classes)
        if row.fits
        and ((row.price or 0) <= KIN * likely or family_of(resolve(row.name)) != family_of(winner))
    ]


def _fitting(context: Context, names: list[str], wanted: int, *, until: float | None) -> list[dict[str, Any]]:
    """Measure networks one by one until enough keep the budget, those that cannot by the speed of others left out.

    With no time left only known ones count.
    """
    budget, image = context.recipe.request.budget_ms, context.recipe.image
    known = {row["network"]: row for row in context.outcomes["fastest"]["networks"]}
    found: list[dict[str, Any]] = []
    looks, rate = 0, 0.0  # the most work that any of those measured does in a millisecond
    for name in names:
        if len(found) >= wanted:
            break
        macs = count(name, image=image).macs
        late = looks >= 4 * wanted + 2 or (until is not None and time.monotonic() > until)
        if name not in known and (late or (looks and macs > KIN * rate * budget)):
            continue
        row = known.get(name) or {"network": name, **context.look(name)}
        looks, rate = looks + (name not in known), max(rate, macs / row["median_ms"])
        if row["p95_ms"] <= SLACK * budget:
            found.append(row)
    return found


def _members(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*found["front"], *found.get("family", [])]


def _fits(file: Path, use: Use) -> bool:
    try:
        read_pack(file, use=use)
    except UserError:
        return False
    return True

"""The stages that find a network: the data's doctor, the device pack, the fastest network, the search, the choice."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from segtailor.api.calibration import pack_name
from segtailor.api.networks import architectures, count
from segtailor.api.training import CHECKED
from segtailor.core.errors import UserError
from segtailor.costs.pack import Use, read_pack
from segtailor.data.doctor import examine
from segtailor.data.locate import locate
from segtailor.recipes.calibrating import CalibrateRecipe
from segtailor.runs import Layout
from segtailor.tailoring.context import Context
from segtailor.tailoring.searches import search_recipe

FASTEST = 4  # networks measured to know what the target can do at all
MEASURED = 8  # candidates of a search that are measured whole before one is chosen
SLACK = 0.95  # of the budget that a chosen network may take before it is trained


def data(context: Context) -> dict[str, Any]:
    """Examine the data as it was given."""
    found = examine(lambda: locate(context.recipe.request.data), limit=CHECKED)
    return {**found.document(), "used": context.recipe.data}


def fastest(context: Context) -> dict[str, Any]:
    """Measure the smallest ready networks: if half of the runs of each are too slow, no search can help."""
    image = context.recipe.image
    smallest = sorted(architectures(), key=lambda name: count(name, image=image).macs)[:FASTEST]
    rows: list[dict[str, Any]] = [
        {"network": name, "median_ms": one.median_ms, "p95_ms": one.p95_ms}
        for name in smallest
        for one in context.time([name])
    ]
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
    found = context.carry_out(calibration, "pack")
    kept.parent.mkdir(parents=True, exist_ok=True)
    read_pack(Path(str(found["pack"]))).write(kept)
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
        (one,) = context.time([str(file)])
        rows.append({**row, "architecture": str(file), "median_ms": one.median_ms, "p95_ms": one.p95_ms})
        if one.p95_ms <= SLACK * context.recipe.request.budget_ms:
            return {**rows[-1], "measured": rows, "kept": True}
    if not rows:
        raise UserError("the search found no network that works; see its journal, or give it more time.")
    return {**min(rows, key=lambda row: row["p95_ms"]), "measured": rows, "kept": False}


def _members(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*found["front"], *found.get("family", [])]


def _fits(file: Path, use: Use) -> bool:
    try:
        read_pack(file, use=use)
    except UserError:
        return False
    return True

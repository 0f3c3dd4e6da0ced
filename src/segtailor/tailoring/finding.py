"""The stages that find a network: the data's doctor, the device pack, the fastest network, the search, the choice."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

from segtailor.core.atomic import write_json
from segtailor.core.errors import UserError
from segtailor.core.plan import Shape
from segtailor.core.registry import SPACES
from segtailor.core.space import Architecture, architecture_document, family_of, fingerprint_of
from segtailor.core.target import parse_target
from segtailor.core.variation import sample
from segtailor.costs import LatencyTable, Macs
from segtailor.costs.measured import distinct_architectures, time_networks
from segtailor.costs.pack import Use, read_pack
from segtailor.costs.trust import MeasuredNetwork, recheck, with_scaled_prices
from segtailor.data.doctor import examine
from segtailor.data.locate import locate
from segtailor.recipes.calibrate import CalibrateRecipe
from segtailor.runs import Layout
from segtailor.spaces import baselines as handmade
from segtailor.spaces.networks import count, resolve
from segtailor.spaces.published import architectures
from segtailor.tailoring.context import OWN, Context
from segtailor.tailoring.pacing import PACK_MAKINGS, PACK_OF_REST, READY_SHARE
from segtailor.tailoring.ready import ready_networks
from segtailor.tailoring.searches import search_recipe
from segtailor.verbs.calibrate import pack_name
from segtailor.verbs.train import MAX_CHECKED

FASTEST = 4  # networks measured to know what the target can do at all
MEASURED = 8  # candidates of a search that are measured whole before one is chosen
SLACK = 0.95  # of the budget that a chosen network may take before it is trained
FASTEST_SHARE = 0.05  # of the time asked for, after which one network within the budget is enough to know
RECHECKED, DRAWN = 3, 40  # networks measured before a pack is used again, of so many drawn
LOOKS = 3  # at a network of which only the slowest runs miss the budget
LOOK_SECONDS = 1.5  # of measuring a network, besides making it ready
SMALLER_TRIES = 6  # smaller networks that are measured where none that was found keeps the budget
SMALLER_DRAWS = 400  # random networks among which these are looked for
SMALLER_SLACK = 0.85  # of the cost that would just keep the budget
KIN, OTHERS = (
    1.3,
    3.0,
)  # work that a ready network may do in the time of the winner's, by whether it is of its family


def data(context: Context) -> dict[str, Any]:
    """Examine the data as it was given."""
    found = examine(lambda: locate(context.recipe.request.data), limit=MAX_CHECKED)
    return {**found.document(), "used": context.recipe.data}


def fastest(context: Context) -> dict[str, Any]:
    """Measure the smallest ready networks: if half of the runs of each are too slow, no search can help."""
    image, request = context.recipe.image, context.recipe.request
    smallest = sorted(architectures(), key=lambda name: count(name, image=image).macs)[:FASTEST]
    until = None if request.seconds is None else time.monotonic() + FASTEST_SHARE * request.seconds
    rows: list[dict[str, Any]] = []
    for name in smallest:
        if until is not None and time.monotonic() > until and any(_kept(context, row) for row in rows):
            break
        rows.append({"network": name, **context.look(name)})
    best = min(rows, key=lambda row: row["median_ms"])
    possible = best["median_ms"] <= request.budget_ms
    height, width = image
    stop = (
        f"No network keeps {request.budget_ms:g} ms on {request.target} at {height}x{width}: the fastest one known, "
        f"{best['network']}, takes {best['median_ms']:.3g} ms. Allow more time, or a smaller --image."
    )
    return {"networks": rows, **best, "possible": possible, "stop": None if possible else stop}


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
    begun = context.begun("pack")
    again = None if begun else _known_pack(context, calibration, kept, use)
    if again is not None:
        return again
    minutes = _pack_minutes(context)
    if minutes is None and not begun:
        reason = "a table of operators takes too long on this machine for the time; work stands for latency"
        context.tell(reason)
        return {"pack": None, "made": False, "reason": reason}
    found = context.carry_out(replace(calibration, minutes=minutes or effort.pack_minutes), "pack")
    # Kept for later where it is of a quiet time, and was measured just now: what lay there before may be somebody
    # else's word, and other tailorings would take it.
    if not begun and not found.get("warnings"):
        kept.parent.mkdir(parents=True, exist_ok=True)
        read_pack(Layout(context.run_folder("pack")).cost_table).write(kept)
    return {**found, "made": True}


def _pack_minutes(context: Context) -> float | None:
    """Return how long the pack may take, None where it could not be made well in that."""
    minutes, left = context.recipe.effort.pack_minutes, context.before_training()
    if left is None:
        return minutes
    seconds = min(60 * minutes, PACK_OF_REST * left)
    making = mean(row["making_seconds"] for row in context.outcomes["fastest"]["networks"])
    return None if seconds < PACK_MAKINGS * (making + LOOK_SECONDS) else round(seconds / 60, 2)


def _known_pack(
    context: Context, calibration: CalibrateRecipe, file: Path, use: Use
) -> dict[str, Any] | None:
    """Return the pack of an earlier tailoring, scaled to what networks take now; None where it must be made."""
    if not file.is_file() or not _fits(file, use):
        return None
    known = read_pack(file, use=use)
    limit = context.recipe.search_limit_ms
    space, table = calibration.search_space(), LatencyTable(pack=known)
    shape = Shape(3, *calibration.image)
    drawn = [
        (arch, space.plan(arch, shape, calibration.classes))
        for arch in islice(distinct_architectures(space, seed=context.recipe.request.seed + 1), DRAWN)
    ]
    near = sorted(drawn, key=lambda pair: abs(table.of(pair[1]) - limit))[:RECHECKED]
    taken = time_networks(
        [plan for _, plan in near], parse_target(calibration.target), settings=context.timing(final=False)
    )
    seen = [
        MeasuredNetwork(fingerprint_of(arch), plan, low, median)
        for (arch, plan), (low, median) in zip(near, taken, strict=True)
    ]
    found = recheck(known, seen)
    outcome = {"made": False, "ratio": round(found.ratio, 3), **known.summary()}
    if found.decision == "renew":
        context.tell("the device pack of an earlier time does not fit this machine now: it is made anew")
        return None
    if found.decision == "fits":
        return {"pack": str(file), **outcome}
    context.tell(
        f"networks take {found.ratio:.2f} times what the device pack of an earlier time says: its prices are scaled"
    )
    own = Layout(context.folder).stages / "pack.scaled.json"
    with_scaled_prices(known, found.ratio).write(own)
    return {"pack": str(own), **outcome}


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
    """Measure what was found whole, best first, and take the first that keeps the budget with some slack.

    Where none does, smaller networks of the space take their place; where these are too slow as well, a ready one.
    """
    layout = Layout(Path(context.outcomes["search"]["run"]))
    found = sorted(context.outcomes["search"]["found"], key=lambda row: -row["quality"])[:MEASURED]
    if not found:
        raise UserError("the search found no network that works; see its journal, or give it more time.")
    rows: list[dict[str, Any]] = []
    for row in found:
        left = context.before_training(kept=READY_SHARE)
        if rows and left is not None and left < 0:
            break
        file = layout.architecture(row["fingerprint"])
        rows.append({**row, "network": OWN, "architecture": str(file), **_quiet_look(context, str(file))})
        if _kept(context, rows[-1]):
            return {**rows[-1], "measured": rows, "kept": True}
    return _smaller(context, rows) or _ready_instead(context, rows)


def _quiet_look(context: Context, model: str) -> dict[str, float]:
    """Measure a network; again where most runs keep the budget and only some do not: the machine was busy then."""
    found = context.look(model)
    for _ in range(LOOKS - 1):
        if _kept(context, found) or found["median_ms"] > SLACK * context.recipe.request.budget_ms:
            break
        found = min(found, context.look(model), key=lambda row: row["p95_ms"])
    return found


def _kept(context: Context, row: Mapping[str, Any]) -> bool:
    return bool(row["p95_ms"] <= SLACK * context.recipe.request.budget_ms)


def _smaller(context: Context, rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Measure smaller and smaller networks of the space, the largest first of those that should keep the budget."""
    recipe, pack = context.recipe, context.outcomes["pack"]["pack"]
    space = search_recipe(context, pack=None).space.build(SPACES)
    cost = Macs() if pack is None else LatencyTable(pack=read_pack(Path(pack)))
    shape, classes = Shape(3, *recipe.image), locate(recipe.data).task.outputs

    def price(arch: Architecture) -> float:
        return float(cost.of(space.plan(arch, shape, classes)))

    rng = Random(recipe.request.seed)
    drawn = [sample(space, rng) for _ in range(SMALLER_DRAWS)]
    drawn.append(space.architecture({decision.name: 0 for decision in space.decisions}))
    priced = sorted(((price(arch), arch) for arch in drawn), key=lambda pair: pair[0])
    last = min(rows, key=lambda row: row["p95_ms"])
    spent, measured = price(resolve(last["architecture"])), rows
    context.tell("no network that was found keeps the budget as measured: smaller ones take their place")
    for number in range(SMALLER_TRIES):
        limit = SMALLER_SLACK * spent * SLACK * recipe.request.budget_ms / last["p95_ms"]
        fitting = [pair for pair in priced if pair[0] <= limit]
        spent, arch = fitting[-1] if fitting else priced[0]
        file = Layout(context.folder).stages / f"smaller-{number}.json"
        write_json(file, architecture_document(arch), what="architecture")
        row = {
            "network": OWN,
            "fingerprint": fingerprint_of(arch),
            "quality": None,
            "cost": spent,
            "trial": None,
        }
        last = {**row, "architecture": str(file), **_quiet_look(context, str(file))}
        measured = [*measured, last]
        if _kept(context, last):
            return {**last, "measured": measured, "kept": True}
        if not fitting:
            break
    rows[:] = measured
    return None


def _ready_instead(context: Context, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Take the largest ready network that is known to keep the budget; with none, the fastest of all that there is."""
    known = context.outcomes["fastest"]["networks"]
    keeping = [row for row in known if _kept(context, row)]
    if keeping:
        best = max(keeping, key=lambda row: row["p95_ms"])
        context.tell(
            f"no network of the search keeps the budget: the ready network {best['network']} is trained"
        )
        return {**best, "architecture": best["network"], "measured": rows, "kept": True}
    return {**min(rows, key=lambda row: row["p95_ms"]), "measured": rows, "kept": False}


def ready(context: Context) -> dict[str, Any]:
    """Find the ready networks that are worth training: within the budget as measured, the best expected first.

    At least one is hand-made where any keeps the budget. What the target is known to run in time needs no other look.
    """
    wanted, asked = context.recipe.effort.baselines, context.recipe.request.seconds
    until = None if asked is None else time.monotonic() + READY_SHARE * asked
    found: list[dict[str, Any]] = []
    names = _worth_a_look(context) if wanted else []
    names = [name for name in names if name != context.outcomes["choose"].get("network")]
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

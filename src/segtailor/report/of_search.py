"""The report of a search: every network that was judged, what was chosen, and how it came to that."""

from __future__ import annotations

import re
from typing import Any

from segtailor.core.codec import read_json
from segtailor.core.errors import UserError
from segtailor.core.plan import Plan, Shape, count
from segtailor.core.space import plan_of, read_architecture
from segtailor.core.text import command, path_argument
from segtailor.costs import LatencyTable, read_pack
from segtailor.report.document import (
    Command,
    DrawnNetwork,
    Fact,
    Front,
    LayerTimes,
    Point,
    Report,
    Verdict,
)
from segtailor.report.fields import at, number, rows, size, table, text, whole
from segtailor.report.folder import RunFolder
from segtailor.report.layers import layer_times
from segtailor.report.numbers import amount, duration, percent
from segtailor.report.search_story import search_story
from segtailor.report.surroundings import commands, conditions

UNITS = {"macs": "MACs", "params": "params", "memory": "bytes", "latency": "ms"}
NAMES = {"macs": "multiply-accumulates", "params": "parameters", "memory": "activation memory"}
FINGERPRINT = re.compile(r"[0-9a-f]{16}")
ORIGINS = ("entrant", "direction", "k")  # of a trial, in its name


def search_report(run: RunFolder) -> Report:
    """Return what a search found; of an unfinished one what its journal holds."""
    name = text(run.recipe, "name") or "a recipe"
    missing = list(run.missing)
    best, plan = _best(run), None
    if best is not None:
        plan = _plan(run, text(best, "fingerprint"), missing)
    return Report(
        title=f"Search {name}",
        subtitle=f"{text(run.recipe, 'strategy', 'kind')} in {text(run.recipe, 'space', 'kind')} "
        f"on {text(run.recipe, 'data')}, seed {at(run.recipe, 'seed')}",
        verdict=_verdict(run, best, plan),
        front=_front(run, best),
        networks=(DrawnNetwork(name=f"the chosen network, {_trial_name(run, best)}", plan=plan),)
        if plan and best
        else (),
        search=search_story(run, trials=trials(run), unit=unit_of(run)),
        layers=_layers(run, plan, missing) if plan else None,
        conditions=conditions(run),
        commands=commands(run, *_next(run, best)),
        missing=tuple(missing),
    )


def unit_of(run: RunFolder) -> str:
    """Return the unit of the cost."""
    return text(run.result, "unit") or UNITS.get(text(run.recipe, "cost", "kind"), "")


def trials(run: RunFolder) -> list[dict[str, Any]]:
    """Return the trials judged in full, each once: from the result, or from the journal of an unfinished run."""
    found = rows(run.result, "trials") or [record for record in run.records if "id" in record]
    complete = [
        row
        for row in found
        if text(row, "result", "status") == "done"
        and number(row, "budget") == 1
        and number(row, "result", "quality") is not None
        and number(row, "result", "cost") is not None
        and whole(row, "id") is not None
    ]
    return sorted({row["id"]: row for row in complete}.values(), key=lambda row: row["id"])


def _best(run: RunFolder) -> dict[str, Any] | None:
    """Return the chosen trial, or the best so far."""
    judged = {row["id"]: row for row in trials(run)}
    chosen = whole(run.result, "trial")
    if chosen is None and run.steps:
        chosen = whole(dict(run.steps[-1].step.best), "trial")
    return judged.get(chosen) if chosen is not None else None


def _verdict(run: RunFolder, best: dict[str, Any] | None, plan: Plan | None) -> Verdict:
    limit, unit, judged = number(run.recipe, "limit"), unit_of(run), len(trials(run))
    if best is None:
        sentence = f"The search has not judged a network in full yet: {run.progress}."
        return Verdict(sentence=sentence, facts=(Fact(name="time", value=duration(run.seconds)),))
    quality, cost = best["result"]["quality"], best["result"]["cost"]
    met = None if limit is None else cost <= limit
    budget = "" if limit is None else f", {'within' if met else 'above'} the budget of {amount(limit, unit)}"
    so_far = "" if run.finished else f" so far ({run.progress})"
    among = f"the chosen one of {judged} networks" if judged > 1 else "the one network judged"
    sentence = (
        f"{among[0].upper()}{among[1:]}{so_far} reaches {percent(quality)} mIoU on the judging half "
        f"at {amount(cost, unit)}{budget}."
    )
    facts = [
        Fact(name="mIoU, short training", value=percent(quality)),
        Fact(name=_cost_name(run), value=amount(cost, unit)),
        Fact(name="networks judged", value=str(judged), note=_failures(run)),
    ]
    if plan is not None:
        facts.append(Fact(name="parameters", value=amount(count(plan).params)))
    return Verdict(sentence=sentence, met=met, facts=(*facts, Fact(name="time", value=duration(run.seconds))))


def _front(run: RunFolder, best: dict[str, Any] | None) -> Front | None:
    judged = trials(run)
    if not judged:
        return None
    joined = [whole(row, "trial") for row in rows(run.result, "family") or rows(run.result, "front")]
    points = []
    for row in judged:
        chosen = best is not None and row["id"] == best["id"]
        origin = table(row, "origin")
        named = chosen or row["id"] in joined or "entrant" in origin
        plan = _plan(run, text(row, "fingerprint"), []) if named else None
        points.append(
            Point(
                name=_trial_name(run, row),
                group="winner" if chosen else "searched family" if named else "trial",
                quality=row["result"]["quality"],
                cost=row["result"]["cost"],
                params=count(plan).params if plan else None,
                macs=count(plan).macs if plan else None,
                note=" ".join(str(origin[key]) for key in ORIGINS if key in origin),
            )
        )
    names = {row["id"]: _trial_name(run, row) for row in judged}
    return Front(
        points=tuple(points),
        unit=unit_of(run),
        cost_name=_cost_name(run),
        quality_name="mIoU on the judging half",
        budget=number(run.recipe, "limit"),
        path=tuple(names[trial] for trial in joined if trial in names),
        note="Each network was trained briefly or took its weights from a supernet: the figures rank networks, "
        "they are not what full training reaches.",
    )


def _plan(run: RunFolder, fingerprint: str, missing: list[str]) -> Plan | None:
    """Return the plan of a kept architecture at the size it was priced at."""
    image = size(run.recipe, "image")
    if (
        image is None
        or not FINGERPRINT.fullmatch(fingerprint)
        or not run.layout.architecture(fingerprint).exists()
    ):
        return None
    try:
        return plan_of(
            read_architecture(run.layout.architecture(fingerprint)),
            Shape(3, *image),
            _classes(run),
        )
    except UserError as problem:
        missing.append(f"the network {fingerprint} cannot be drawn: {problem}")
        return None


def _classes(run: RunFolder) -> int:
    """Return the channels of the main output, as the kept plan or price table has it."""
    for file in sorted(run.layout.architectures.glob("*.plan.json"))[:1]:
        document = read_json(file, what="plan")
        last = next(
            (row for row in rows(document, "nodes") if row.get("name") == at(document, "outputs", "main")), {}
        )
        shape = at(last, "shape")
        if isinstance(shape, list) and shape and isinstance(shape[0], int):
            return shape[0]
    return 19


def _layers(run: RunFolder, plan: Plan, missing: list[str]) -> LayerTimes | None:
    """Price the layers of the chosen network with the table that the search used."""
    if not run.layout.cost_table.exists():
        return None
    try:
        prices = LatencyTable(pack=read_pack(run.layout.cost_table))
        return layer_times(
            plan, price=prices.price, note=f"Prices of the device pack for {prices.pack.target}."
        )
    except UserError as problem:
        missing.append(f"the layers cannot be priced: {problem}")
        return None


def _cost_name(run: RunFolder) -> str:
    kind = text(run.recipe, "cost", "kind")
    if kind == "latency":
        return "latency by the table" if text(run.recipe, "cost", "pack") else "measured latency"
    return NAMES.get(kind, "cost")


def _trial_name(run: RunFolder, row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    entrant = text(row, "origin", "entrant")
    step = {whole(member, "trial"): whole(member, "step") for member in rows(run.result, "family")}.get(
        row["id"]
    )
    return entrant or (f"step {step}" if step is not None else f"trial {row['id']}")


def _failures(run: RunFolder) -> str:
    failed = whole(run.result, "failed")
    return f"{failed} failed" if failed else ""


def _next(run: RunFolder, best: dict[str, Any] | None) -> list[Command]:
    if best is None or not run.finished or not FINGERPRINT.fullmatch(text(best, "fingerprint")):
        return []
    file, data = run.layout.architecture(text(best, "fingerprint")), text(run.recipe, "data")
    train = command("segtailor", "train", path_argument(file), "--data", data, "--out", "trained")
    return [Command(text=train, note="Train the chosen network in full:")]

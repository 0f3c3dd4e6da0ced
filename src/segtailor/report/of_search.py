"""The report of a search: every network that was judged, what was chosen, and what the search did over time."""

from __future__ import annotations

import re
from typing import Any

from segtailor.core.codec import from_json, read_json
from segtailor.core.errors import UserError
from segtailor.core.plan import Plan, Shape, count
from segtailor.core.registry import SPACES
from segtailor.core.space import plan_of, read_architecture
from segtailor.core.text import command, path_argument
from segtailor.costs import LatencyTable, read_pack
from segtailor.report.document import (
    Budgets,
    Chart,
    Command,
    DecisionStory,
    DrawnNetwork,
    ExpansionStep,
    Fact,
    Front,
    LayerTimes,
    Offer,
    Point,
    Report,
    SearchStory,
    Series,
    Verdict,
)
from segtailor.report.fields import at, number, rows, size, table, text, whole
from segtailor.report.folder import RunFolder, commands, conditions, present
from segtailor.report.numbers import amount, duration, percent
from segtailor.report.parts import layer_times

UNITS = {
    "macs": "MACs",
    "params": "params",
    "memory": "bytes",
    "latency": "ms",
    "pack": "ms",
    "measured": "ms",
}
COST_NAMES = {
    "macs": "multiply-accumulates",
    "params": "parameters",
    "memory": "activation memory",
    "pack": "latency by the table",
    "measured": "measured latency",
}
STRATEGIES = {
    "random": "Networks drawn at random were judged one by one.",
    "evolution": "The best networks were changed and crossed, generation by generation.",
    "expansion": "A small network was grown step by step, each time where that gained most quality per cost.",
    "study": "A given list of networks was judged side by side.",
    "one_shot": "The weights of all networks were trained together, then networks were judged by their part of them.",
    "gradient": "All candidates were trained in one supernet, and gradients moved the probability of each choice.",
}
FINGERPRINT = re.compile(r"[0-9a-f]{16}")
ORIGIN_KEYS = ("entrant", "direction", "k")  # of a trial, shown in its note
MAX_OFFERS = 64  # networks of a front that are listed with their weights
DEFAULT_CLASSES = 19  # of a drawn network where no plan was kept


def search_report(run: RunFolder) -> Report:
    """Return what a search found; of an unfinished one what its journal holds."""
    missing = list(run.missing)
    best = _best(run)
    plan = _plan(run, text(best, "fingerprint"), missing) if best is not None else None
    chosen = (
        DrawnNetwork(name=f"the chosen network, {_trial_name(run, best)}", plan=plan)
        if plan and best
        else None
    )
    return Report(
        title=f"Search {text(run.recipe, 'name') or 'a recipe'}",
        subtitle=f"{text(run.recipe, 'strategy', 'kind')} in {text(run.recipe, 'space', 'kind')} "
        f"on {text(run.recipe, 'data')}, seed {at(run.recipe, 'seed')}",
        verdict=_verdict(run, best, plan),
        front=_front(run, best),
        budgets=_budgets(run),
        networks=(chosen,) if chosen else (),
        search=search_story(run),
        layers=_layers(run, plan, missing) if plan else None,
        conditions=conditions(run),
        commands=commands(run, *_next_commands(run, best)),
        missing=tuple(missing),
    )


def unit_of(run: RunFolder) -> str:
    """Return the unit of the cost."""
    return text(run.result, "unit") or UNITS.get(text(run.recipe, "cost", "kind"), "")


def trials(run: RunFolder) -> list[dict[str, Any]]:
    """Return the trials judged in full, each once: from the result, or from the journal of an unfinished run."""
    records = rows(run.result, "trials") or [record for record in run.records if "id" in record]
    complete = [
        row
        for row in records
        if text(row, "result", "status") == "done"
        and number(row, "budget") == 1
        and number(row, "result", "quality") is not None
        and number(row, "result", "cost") is not None
        and whole(row, "id") is not None
    ]
    return sorted({row["id"]: row for row in complete}.values(), key=lambda row: row["id"])


def search_story(run: RunFolder) -> SearchStory:
    """Return what any search did over time; parts that do not apply are empty."""
    judged, unit = trials(run), unit_of(run)
    kind = text(run.recipe, "strategy", "kind")
    by_gradient = bool(rows(run.result, "trajectory")) or kind == "gradient"
    strategy = STRATEGIES.get(kind, f"The strategy '{kind}' was used.")
    many = f"{len(judged)} networks were judged in full" if judged else "No network was judged in full"
    warnings = at(run.result, "warnings")
    return SearchStory(
        summary=f"{strategy} {many} in {duration(run.seconds)}.",
        charts=_gradient_charts(run, unit) if by_gradient else _trial_charts(judged, unit),
        decisions=_decisions(run),
        path=_expansion_path(run),
        unit=unit,
        warnings=tuple(line for line in warnings if isinstance(line, str))
        if isinstance(warnings, list)
        else (),
    )


def _best(run: RunFolder) -> dict[str, Any] | None:
    """Return the chosen trial, or the best so far."""
    judged = {row["id"]: row for row in trials(run)}
    chosen = whole(run.result, "trial")
    if chosen is None and run.steps:
        chosen = whole(dict(run.steps[-1].step.best), "trial")
    return judged.get(chosen) if chosen is not None else None


def _plan(run: RunFolder, fingerprint: str, missing: list[str]) -> Plan | None:
    """Return the plan of a kept architecture at the size it was priced at."""
    image = size(run.recipe, "image")
    if image is None or not FINGERPRINT.fullmatch(fingerprint):
        return None
    file = run.layout.architecture(fingerprint)
    if not file.exists():
        return None
    try:
        return plan_of(read_architecture(file), Shape(3, *image), _classes(run))
    except UserError as problem:
        missing.append(f"the network {fingerprint} cannot be drawn: {problem}")
        return None


def _classes(run: RunFolder) -> int:
    """Return the channels of the main output, as a kept plan has it."""
    for file in sorted(run.layout.architectures.glob("*.plan.json"))[:1]:
        plan = read_json(file, what="plan")
        main = at(plan, "outputs", "main")
        shape = at(next((row for row in rows(plan, "nodes") if row.get("name") == main), {}), "shape")
        if isinstance(shape, list) and shape and isinstance(shape[0], int):
            return shape[0]
    return DEFAULT_CLASSES


def _verdict(run: RunFolder, best: dict[str, Any] | None, plan: Plan | None) -> Verdict:
    limit, unit, judged = number(run.recipe, "limit"), unit_of(run), len(trials(run))
    time = Fact(name="time", value=duration(run.seconds))
    if best is None:
        sentence = f"The search has not judged a network in full yet: {run.progress}."
        return Verdict(sentence=sentence, facts=(time,))
    quality, cost = best["result"]["quality"], best["result"]["cost"]
    met = None if limit is None else cost <= limit
    budget = "" if limit is None else f", {'within' if met else 'above'} the budget of {amount(limit, unit)}"
    so_far = "" if run.finished else f" so far ({run.progress})"
    subject = f"The chosen one of {judged} networks" if judged > 1 else "The one network judged"
    sentence = f"{subject}{so_far} reaches {percent(quality)} mIoU on the judging half at {amount(cost, unit)}{budget}."
    failed = whole(run.result, "failed")
    facts = [
        Fact(name="mIoU, short training", value=percent(quality)),
        Fact(name=_cost_name(run), value=amount(cost, unit)),
        Fact(name="networks judged", value=str(judged), note=f"{failed} failed" if failed else ""),
    ]
    if plan is not None:
        facts.append(Fact(name="parameters", value=amount(count(plan).params)))
    return Verdict(sentence=sentence, met=met, facts=(*facts, time))


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
                note=" ".join(str(origin[key]) for key in ORIGIN_KEYS if key in origin),
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


def _budgets(run: RunFolder) -> Budgets | None:
    """Return the networks of the front that were kept with their weights."""
    unit, folder = unit_of(run), path_argument(run.layout.root)
    offers = []
    for row in rows(run.result, "front")[:MAX_OFFERS]:
        fingerprint, quality, cost = text(row, "fingerprint"), number(row, "quality"), number(row, "cost")
        if not FINGERPRINT.fullmatch(fingerprint) or quality is None or cost is None:
            continue
        bundle = run.layout.front(fingerprint)
        if not bundle.is_dir():
            continue
        plan = _plan(run, fingerprint, [])
        export = command("segtailor", "export", path_argument(bundle), "--to", "onnx", "--out", fingerprint)
        offers.append(
            Offer(
                name=_trial_name(run, row | {"id": whole(row, "trial")}),
                quality=quality,
                cost=cost,
                evidence="judged",
                params=count(plan).params if plan else None,
                macs=count(plan).macs if plan else None,
                note=fingerprint,
                command=export,
            )
        )
    if not offers:
        return None
    in_time = unit == "ms"
    return Budgets(
        offers=tuple(offers),
        unit=unit,
        cost_name=_cost_name(run),
        budget=number(run.recipe, "limit"),
        before=command("segtailor", "export", folder, "--budget") if in_time else "",
        after="--out exported" if in_time else "",
        note="Quality is that of the shared weights on the judging images; a short training adds to it. Networks are "
        "timed from image to labels, and the best that keeps a budget is exported, by: "
        + command("segtailor", "export", folder, "--budget", "8ms"),
    )


def _cost_name(run: RunFolder) -> str:
    kind = text(run.recipe, "cost", "kind")
    if kind == "latency":  # of earlier versions
        return "latency by the table" if text(run.recipe, "cost", "pack") else "measured latency"
    return COST_NAMES.get(kind, "cost")


def _trial_name(run: RunFolder, row: dict[str, Any]) -> str:
    entrant = text(row, "origin", "entrant")
    steps = {whole(member, "trial"): whole(member, "step") for member in rows(run.result, "family")}
    step = steps.get(row["id"])
    return entrant or (f"step {step}" if step is not None else f"trial {row['id']}")


def _trial_charts(judged: list[dict[str, Any]], unit: str) -> tuple[Chart, ...]:
    if not judged:
        return ()
    x = tuple(float(row["id"]) for row in judged)
    quality = tuple(100 * float(row["result"]["quality"]) for row in judged)
    best = tuple(max(quality[: index + 1]) for index in range(len(quality)))
    cost = tuple(float(row["result"]["cost"]) for row in judged)
    return (
        Chart(
            title="Reward by trial",
            x_name="trial",
            y_name="mIoU in %",
            series=(Series(name="best so far", x=x, y=best), Series(name="each trial", x=x, y=quality)),
        ),
        Chart(
            title="Cost by trial",
            x_name="trial",
            y_name=unit,
            series=(Series(name="each trial", x=x, y=cost),),
            dots=True,
        ),
    )


def _gradient_charts(run: RunFolder, unit: str) -> tuple[Chart, ...]:
    metrics = list(dict.fromkeys(name for row in run.steps for name in row.step.metrics))

    def starting(prefix: str) -> list[tuple[str, str]]:
        matching = [name for name in metrics if name.startswith(prefix)]
        return [(name, name.removeprefix(prefix).replace("_", " ")) for name in matching]

    return present(
        [
            run.curve("Expected depth", starting("expected_"), y="blocks"),
            run.curve("Indecision: entropy of the choices", starting("entropy_"), y="1 undecided, 0 decided"),
            run.curve("Expected cost", [("cost", "expected cost")], y=unit),
            run.curve("Loss of the supernet", [("loss", "loss")], y="loss"),
            run.curve("Quality of the likeliest network", [("quality", "mIoU")], y="mIoU in %", factor=100),
            run.curve("Candidates left", [("candidates", "candidates")], y="operators"),
        ]
    )


def _decisions(run: RunFolder) -> tuple[DecisionStory, ...]:
    """Return how the probabilities of the first role moved."""
    moments = rows(run.result, "trajectory")
    roles = table(moments[0], "roles") if moments else {}
    if not roles:
        return ()
    role, stories = next(iter(roles)), []
    steps = tuple(number(moment, "step") or 0.0 for moment in moments)
    options = _options(run)
    for name in table(roles, role, "probabilities"):
        shares = tuple(_probabilities(moment, role, name) for moment in moments)
        width = len(shares[0])
        if width > 1 and all(len(row) == width for row in shares):
            known = options.get(name, ())
            names = known if len(known) == width else tuple(f"option {index}" for index in range(width))
            stories.append(DecisionStory(name=name, options=names, at=steps, shares=shares))
    return tuple(stories)


def _probabilities(moment: dict[str, Any], role: str, name: str) -> tuple[float, ...]:
    values = at(moment, "roles", role, "probabilities", name)
    return (
        tuple(float(value) for value in values if isinstance(value, int | float))
        if isinstance(values, list)
        else ()
    )


def _options(run: RunFolder) -> dict[str, tuple[str, ...]]:
    """Return the names of the options of every decision of the space."""
    kind, part = text(run.recipe, "space", "kind"), table(run.recipe, "space")
    settings = {name: value for name, value in part.items() if name != "kind"}
    try:
        # Earlier versions kept the fields of a space under `settings`.
        space = from_json(SPACES.get(kind), settings.get("settings", settings), what=f"space '{kind}'")
        return {row.name: tuple(str(option) for option in row.options) for row in space.decisions}
    except UserError:
        return {}


def _expansion_path(run: RunFolder) -> tuple[ExpansionStep, ...]:
    path = []
    for member in rows(run.result, "family"):
        quality, cost = number(member, "quality"), number(member, "cost")
        if quality is None or cost is None:
            continue
        times = whole(member, "k")
        direction = text(member, "direction").replace("_", " ") or "start"
        path.append(
            ExpansionStep(
                step=whole(member, "step") or 0,
                direction=f"{direction} × {times}" if times and times > 1 else direction,
                quality=quality,
                cost=cost,
            )
        )
    return tuple(path)


def _layers(run: RunFolder, plan: Plan, missing: list[str]) -> LayerTimes | None:
    """Price the layers of the chosen network with the table that the search used."""
    if not run.layout.cost_table.exists():
        return None
    try:
        prices = LatencyTable(pack=read_pack(run.layout.cost_table))
        note = f"Prices of the device pack for {prices.pack.target}."
        return layer_times(plan, price=prices.price, note=note)
    except UserError as problem:
        missing.append(f"the layers cannot be priced: {problem}")
        return None


def _next_commands(run: RunFolder, best: dict[str, Any] | None) -> list[Command]:
    if best is None or not run.finished or not FINGERPRINT.fullmatch(text(best, "fingerprint")):
        return []
    file, data = run.layout.architecture(text(best, "fingerprint")), text(run.recipe, "data")
    train = command("segtailor", "train", path_argument(file), "--data", data, "--out", "trained")
    return [Command(text=train, note="Train the chosen network in full:")]

"""The end of a tailoring: its figures, and the report that people read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from segtailor.core.codec import Json
from segtailor.core.errors import UserError
from segtailor.core.target import parse_target
from segtailor.core.text import command, path_argument
from segtailor.data.cache import open_pixels
from segtailor.nets.bundle import load_bundle
from segtailor.recipes.front import kept_networks
from segtailor.recipes.timed import crowded
from segtailor.report import document as page
from segtailor.report.inspecting import inspect
from segtailor.report.parts import calibration_fact, findings_of, layer_times, save_parts, start_fact
from segtailor.spaces import baselines
from segtailor.spaces.networks import count, expand
from segtailor.tailoring.recipe import TailorRecipe
from segtailor.tailoring.selecting import expected_ms
from segtailor.tailoring.stage import (
    SEARCHED,
    TRAINING_NOISE,
    ChosenNetwork,
    ComparedNetwork,
    ContractOutcome,
    DataOutcome,
    Int8Outcome,
    LayersOutcome,
    PackOutcome,
    Recommendation,
    SearchOutcome,
    StageContext,
    TeacherOutcome,
    TimedCandidate,
    TimedNetwork,
    outcome_document,
)
from segtailor.verbs.report import report

EQUAL_RATIO = 1.1  # of the seconds of two trainings that are as long as each other


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """The outcomes that a finished tailoring is reported from."""

    data: DataOutcome
    pack: PackOutcome
    searched: SearchOutcome
    chosen: ChosenNetwork
    teacher: TeacherOutcome
    best: Recommendation
    int8: Int8Outcome
    contract: ContractOutcome
    layers: LayersOutcome


@dataclass(frozen=True, kw_only=True)
class NoDelivery:
    """A tailoring that delivers no network: the reason, and the best network that was timed or trained."""

    reason: str
    data: DataOutcome
    network: str
    median_ms: float
    p95_ms: float
    miou: float | None = None

    @classmethod
    def of_timed(cls, row: TimedNetwork, *, data: DataOutcome, reason: str) -> NoDelivery:
        """Return the end of a tailoring before any training."""
        return cls(reason=reason, data=data, network=row.network, median_ms=row.median_ms, p95_ms=row.p95_ms)

    @classmethod
    def of_trained(cls, compared: Recommendation, *, data: DataOutcome, reason: str) -> NoDelivery:
        """Return the end of a tailoring whose networks are not good enough."""
        row = max(compared.networks, key=lambda row: row.miou)
        return cls(
            reason=reason,
            data=data,
            network=row.network,
            median_ms=row.median_ms,
            p95_ms=row.p95_ms,
            miou=row.miou,
        )


def deliver(
    stage: StageContext, ending: Delivery | NoDelivery, *, seconds: Mapping[str, float]
) -> dict[str, Json]:
    """Write the report and return what the command prints; `seconds` are those of each stage."""
    if isinstance(ending, Delivery):
        figures = _figures(stage, ending)
        parts = _parts(stage, ending, str(figures["verdict"]), seconds)
    else:
        figures = _no_figures(stage, ending)
        parts = page.Parts(
            verdict=page.Verdict(sentence=ending.reason, met=False),
            choices=stage.recipe.choices,
            data=_data(stage, ending.data),
            stages=_stage_summaries(seconds),
            commands=_commands(stage.recipe),
        )
    save_parts(stage.folder, parts)
    written = report([stage.folder])
    return {**figures, "report": written["report"], "seconds": round(sum(seconds.values()), 1)}


def _figures(stage: StageContext, delivery: Delivery) -> dict[str, Json]:
    best, contract = delivery.best, delivery.contract
    return {
        "run": str(stage.folder),
        "model": best.model,
        "file": contract.file,
        "network": best.network,
        "miou": delivered_miou(best, delivery.int8),
        "latency_ms": contract.median_ms,
        "p95_ms": contract.p95_ms,
        "budget_ms": contract.budget_ms,
        "met": contract.met,
        "target": contract.target,
        "includes": contract.includes,
        "search_worth_it": best.worth,
        "start": _start(best),
        "verdict": full_verdict(delivery),
    }


def _start(best: Recommendation) -> Json:
    """Return what the delivered network started from, as its bundle says."""
    return load_bundle(Path(best.model)).provenance.get("start")


def _no_figures(stage: StageContext, ending: NoDelivery) -> dict[str, Json]:
    request = stage.recipe.request
    return {
        "run": str(stage.folder),
        "model": None,
        "network": ending.network,
        "miou": ending.miou,
        "latency_ms": ending.median_ms,
        "p95_ms": ending.p95_ms,
        "budget_ms": request.budget_ms,
        "met": False,
        "target": request.target,
        "verdict": ending.reason,
    }


def delivered_miou(best: Recommendation, int8: Int8Outcome) -> float:
    """Return the mIoU of the delivered file: that of int8 if it is kept."""
    return int8.after.miou if int8.kept and int8.after is not None else best.miou


def verdict(best: Recommendation, int8: Int8Outcome, contract: ContractOutcome) -> str:
    """Return the result in one sentence: which network to use, and how it compares with the other kind."""
    name = "the searched network" if best.worth else f"the ready network {best.network}"
    keeps = "keeps" if contract.met else "MISSES"
    sentence = (
        f"Use {name}: {100 * delivered_miou(best, int8):.1f} % mIoU on unseen pictures, {contract.p95_ms:.2f} ms (95 % "
        f"of runs) on {contract.target}, which {keeps} the budget of {contract.budget_ms:.4g} ms{_disturbed(contract)}"
    )
    rows = {row.network: row for row in best.networks}
    rival = rows.get(best.best_ready or "") if best.worth else rows.get(SEARCHED)
    if rival is None:
        return f"{sentence}; {_no_comparison(best)}."
    who = f"the best ready network ({rival.network})" if best.worth else "the searched network"
    late = not best.worth and contract.met and rival.p95_ms > contract.budget_ms
    missed = f" but takes {rival.p95_ms:.2f} ms" if late else ""
    compared = (
        f"{sentence}; {who} reached {100 * rival.miou:.1f} %{_unequal(rows[best.network], rival)}{missed}"
    )
    return compared + ("." if late else f"{_tie(rows[best.network], rival)}.")


def _disturbed(contract: ContractOutcome) -> str:
    """Say that other programs, not the network, made it miss the budget."""
    if contract.met or not crowded(contract.min_ms, contract.p95_ms, limit_ms=contract.budget_ms):
        return ""
    return (
        f" because other programs interrupted it (half of all runs take {contract.median_ms:.3g} ms at most)"
    )


def full_verdict(delivery: Delivery) -> str:
    """Return the verdict, what makes the comparison uneven, and why the search did not use the budget if that is so."""
    sentence = verdict(delivery.best, delivery.int8, delivery.contract)
    more = [head_start(delivery.best, delivery.searched.shared_steps), delivery.chosen.unused]
    return " ".join([sentence, *filter(None, more)])


def head_start(best: Recommendation, shared_steps: int | None) -> str | None:
    """Say what the searched network learned before its training, where ready networks are compared with it."""
    names = {row.network for row in best.networks}
    if not shared_steps or SEARCHED not in names or len(names) == 1:
        return None
    return f"The searched network also learned during the search: {shared_steps} steps, which it shared with others."


def _tie(best: ComparedNetwork, rival: ComparedNetwork) -> str:
    """Say that a difference is none, where two trainings of one network differ by as much."""
    difference = best.mean_miou - rival.mean_miou
    if best.repeated_miou is None or rival.repeated_miou is None:
        if abs(difference) >= TRAINING_NOISE:
            return ""
        return f", which is no difference: single trainings vary by {100 * TRAINING_NOISE:.1f} points"
    again = f" (with another seed {100 * best.repeated_miou:.1f} against {100 * rival.repeated_miou:.1f} %)"
    spread = max(abs(row.miou - (row.repeated_miou or 0.0)) for row in (best, rival))
    if difference > spread:
        return again
    return f"{again}, which is no difference: trainings of one network differ by {100 * spread:.1f} points"


def _no_comparison(best: Recommendation) -> str:
    if not best.worth:
        return "no network of the search kept the budget"
    if all(row.network == SEARCHED for row in best.networks):
        return "there was no time to train a ready network beside it"
    return "no ready network that was tried kept the budget"


def _unequal(best: ComparedNetwork, rival: ComparedNetwork) -> str:
    """Say that the comparison is not fair, if one network was trained longer than the other."""
    if best.seconds is not None and rival.seconds is not None:
        if max(best.seconds, rival.seconds) <= EQUAL_RATIO * min(best.seconds, rival.seconds):
            return ""
        return f" after {rival.seconds:.0f} seconds of training against {best.seconds:.0f}, which is no fair comparison"
    if best.steps == rival.steps:
        return ""
    return f" after {rival.steps} steps of training against {best.steps}, which is no fair comparison"


def _parts(
    stage: StageContext, delivery: Delivery, sentence: str, seconds: Mapping[str, float]
) -> page.Parts:
    contract = delivery.contract
    facts = (
        page.Fact(name="mIoU", value=f"{100 * delivered_miou(delivery.best, delivery.int8):.1f} %"),
        page.Fact(name="95 % within", value=f"{contract.p95_ms:.2f} ms"),
        page.Fact(name="median", value=f"{contract.median_ms:.2f} ms"),
        page.Fact(name="budget", value=f"{contract.budget_ms:.4g} ms"),
        *calibration_fact(load_bundle(Path(delivery.best.model)).numbers),
        start_fact(_start(delivery.best)),
    )
    return page.Parts(
        verdict=page.Verdict(sentence=sentence, met=contract.met, facts=facts),
        front=_front(stage, delivery),
        budgets=_budgets(stage, delivery),
        layers=_layers(stage, delivery),
        quality=_quality(stage, delivery.best),
        int8=_int8(delivery.int8),
        data=_data(stage, delivery.data),
        choices=(
            *stage.recipe.choices,
            _prices(delivery.pack),
            *_used(delivery.chosen),
            _teacher(delivery.teacher),
        ),
        stages=_stage_summaries(seconds),
        commands=_commands(stage.recipe),
    )


def _prices(pack: PackOutcome) -> page.ChosenSetting:
    """Say what networks cost in the search, and how well that agrees with networks that were timed."""
    value = "MACs" if pack.fit is None else f"fitted to {pack.networks} networks"
    return page.ChosenSetting(setting="prices", value=value, reason=pack.reason)


def _used(chosen: ChosenNetwork) -> tuple[page.ChosenSetting, ...]:
    """Say how much of the budget the chosen network uses, and why not more of it."""
    if chosen.used is None:
        return ()
    reason = chosen.unused or "the best-judged network of the search that keeps the budget as measured"
    return (page.ChosenSetting(setting="used", value=f"{chosen.used:.0%} of the budget", reason=reason),)


def _teacher(outcome: TeacherOutcome) -> page.ChosenSetting:
    """Say whether networks were distilled from a teacher, and why."""
    if outcome.network is None or outcome.miou is None:
        return page.ChosenSetting(
            setting="teacher", value="none", reason=outcome.reason or "none was trained"
        )
    reason = (
        f"it has {outcome.miou:.1%} after {outcome.steps} steps, clearly more than its student after as many"
    )
    return page.ChosenSetting(setting="teacher", value=outcome.network, reason=reason)


def _quality(stage: StageContext, best: Recommendation) -> page.Quality:
    """Predict every validation image with the recommended network."""
    model = load_bundle(Path(best.model))
    pixels = open_pixels(stage.dataset, "val", stage.context.cache_folder)
    return inspect(
        model.predict, pixels, task=stage.dataset.task, names=pixels.names, note="Split 'val', whole images."
    )


def _front(stage: StageContext, delivery: Delivery) -> page.Front:
    """Return every trained network, and the candidates of the search that were timed."""
    trained = [_trained_point(stage, row, delivery) for row in delivery.best.networks]
    candidates = [
        _candidate_point(row, row.quality) for row in delivery.chosen.measured if row.quality is not None
    ]
    return page.Front(
        points=(*trained, *candidates),
        budget=stage.recipe.request.budget_ms,
        note=f"Latency is that of the whole, from a normalised picture to labels ({stage.recipe.includes}).",
    )


def _trained_point(stage: StageContext, row: ComparedNetwork, delivery: Delivery) -> page.Point:
    best = row.network == delivery.best.network
    times = delivery.contract if best and not delivery.int8.kept else row
    ready = "baseline" if row.network in baselines() else "published"
    group = "searched family" if row.network == SEARCHED else ready
    model = load_bundle(Path(row.model))
    size = count(model.architecture, image=stage.recipe.image, classes=model.task.outputs)
    return page.Point(
        name=row.network,
        group="winner" if best else group,
        quality=row.miou,
        cost=times.median_ms,
        p95=times.p95_ms,
        params=size.params,
        macs=size.macs,
        note=f"{'recommended; ' if best else ''}{row.steps} steps of training",
    )


def _candidate_point(row: TimedCandidate, quality: float) -> page.Point:
    return page.Point(
        name=f"trial {row.trial}",
        group="searched family",
        quality=quality,
        cost=row.median_ms,
        p95=row.p95_ms,
        note="quality of the short training of the search, on held-out training pictures",
    )


def _budgets(stage: StageContext, delivery: Delivery) -> page.Budgets | None:
    """Return every network with weights, with its latency as measured, or as it is expected from the others."""
    try:
        kept = kept_networks(stage.folder, stage.recipe.image, tailoring=True)
    except UserError as problem:  # the delivery does not depend on it
        stage.tell(f"the report offers no other budgets: {problem}")
        return None
    measured = {row.fingerprint: row.p95_ms for row in delivery.chosen.measured}
    trained = {row.network: row.p95_ms for row in delivery.best.networks}
    offers = []
    for one in kept:
        timed = trained.get(one.network) if one.evidence == "trained" else measured.get(one.fingerprint)
        latency = timed
        if latency is None and math.isfinite(one.cost):
            latency = expected_ms(one.cost, delivery.pack, delivery.chosen.measured)
        if latency is None:
            continue
        offers.append(
            page.Offer(
                name=one.network,
                quality=one.quality,
                cost=latency,
                evidence=one.evidence,
                rank=one.rank,
                params=one.size.params,
                macs=one.size.macs,
                note="latency is expected from others" if timed is None else "",
            )
        )
    out, target = f"{stage.folder.name}-exported", parse_target(stage.recipe.request.target)
    return page.Budgets(
        offers=tuple(offers),
        budget=stage.recipe.request.budget_ms,
        before=command("segtailor", "export", path_argument(stage.folder), "--budget"),
        after=command("--target", str(target.unrounded), "--out", out),
        note="Trained: mIoU on the validation split after training. Judged: mIoU of the weights that networks share in "
        "the search, on held-out training pictures; a short training adds to it. The command times the networks again.",
    )


def _layers(stage: StageContext, delivery: Delivery) -> page.LayerTimes:
    """Return the timed layers, beside the price of each if prices are milliseconds."""
    best, timed = delivery.best, delivery.layers
    model = load_bundle(Path(best.model))
    fit = delivery.pack.fit
    return layer_times(
        expand(model.architecture, image=stage.recipe.image, classes=model.task.outputs),
        price=None if fit is None else fit.price,
        measured=timed.layers,
        measured_ms=timed.whole_ms,
        note="Each layer was timed by itself; the whole is the network alone, without resizing labels.",
    )


def _int8(outcome: Int8Outcome) -> page.Int8:
    if outcome.before is None or outcome.after is None:
        return page.Int8(decision=outcome.reason)
    rows = tuple(
        page.Precision(name=name, latency_ms=reading.median_ms, p95_ms=reading.p95_ms, quality=reading.miou)
        for name, reading in (("fp32", outcome.before), ("int8", outcome.after))
    )
    return page.Int8(decision=outcome.reason, chosen="int8" if outcome.kept else "fp32", rows=rows)


def _data(stage: StageContext, data: DataOutcome) -> page.DataFindings:
    return findings_of(stage.recipe.request.data, outcome_document(data))


def _stage_summaries(seconds: Mapping[str, float]) -> tuple[page.StageSummary, ...]:
    return tuple(
        page.StageSummary(name=name, status="done", seconds=value) for name, value in seconds.items()
    )


def _commands(recipe: TailorRecipe) -> tuple[page.Command, ...]:
    request = recipe.request
    again = command(
        *("segtailor", "tailor", "--data", request.data, "--target", request.target),
        *("--budget", f"{request.budget_ms:g}ms", "--recipe", request.recipe, "--seed", request.seed),
        *("--start", request.start),
        *(("--time", f"{request.seconds / 60:g}m") if request.seconds else ()),
    )
    return (page.Command(text=again, note="all of it again"),)

"""The end of a tailoring: what was found as figures, and as a report that people read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from segtailor.core.codec import Json
from segtailor.core.text import command
from segtailor.costs import LatencyTable
from segtailor.costs.pack import read_pack
from segtailor.data.cache import open_pixels
from segtailor.data.locate import locate
from segtailor.nets.bundle import load_bundle
from segtailor.report import document as page
from segtailor.report.inspecting import inspect
from segtailor.report.parts import findings_of, layer_times, save_parts
from segtailor.spaces import baselines as handmade
from segtailor.spaces.networks import count, expand
from segtailor.tailoring.context import OWN, Context
from segtailor.tailoring.settings import TailorRecipe
from segtailor.verbs.report import report

NONE_KEPT = "no ready network that was tried kept the budget"


def deliver(context: Context, *, seconds: Mapping[str, float], stopped: str | None = None) -> dict[str, Json]:
    """Write the report and return what the command prints; `stopped` says why nothing is delivered."""
    if stopped is None:
        figures = _figures(context)
        parts = _parts(context, figures, seconds)
    else:
        figures = _nothing(context, stopped)
        parts = page.Parts(
            verdict=page.Verdict(sentence=str(figures["verdict"]), met=False),
            choices=context.recipe.choices,
            data=_data(context),
            stages=_stages(seconds),
            commands=_commands(context.recipe),
        )
    save_parts(context.folder, parts)
    written = report([context.folder])
    return {**figures, "report": written["report"], "seconds": round(sum(seconds.values()), 1)}


def _figures(context: Context) -> dict[str, Json]:
    chosen, kept = context.outcomes["recommend"], context.outcomes["contract"]
    return {
        "run": str(context.folder),
        "model": chosen["model"],
        "file": kept["file"],
        "network": chosen["network"],
        "miou": delivered_miou(context),
        "latency_ms": kept["median_ms"],
        "p95_ms": kept["p95_ms"],
        "budget_ms": kept["budget_ms"],
        "met": kept["met"],
        "target": kept["target"],
        "includes": kept["includes"],
        "search_worth_it": chosen["worth"],
        "verdict": verdict(context),
    }


def delivered_miou(context: Context) -> float:
    """Return the mIoU of what is delivered: that of eight bits where they are kept."""
    int8 = context.outcomes["int8"]
    found = int8["after"]["miou"] if int8.get("kept") else context.outcomes["recommend"]["miou"]
    return float(found)


def verdict(context: Context) -> str:
    """Say in one sentence what came of it."""
    chosen, kept = context.outcomes["recommend"], context.outcomes["contract"]
    whose = "the searched network" if chosen["worth"] else f"the ready network {chosen['network']}"
    keeps = "keeps" if kept["met"] else "MISSES"
    sentence = (
        f"Use {whose}: {100 * delivered_miou(context):.1f} % mIoU on unseen pictures, {kept['p95_ms']:.2f} ms (95 % of "
        f"runs) on {kept['target']}, which {keeps} the budget of {kept['budget_ms']:.4g} ms"
    )
    rows = {row["network"]: row for row in chosen["networks"]}
    rival = chosen["best_ready"] if chosen["worth"] else OWN
    if rival is None or rival not in rows:
        untrained = all(name == OWN for name in rows)
        why = "there was no time to train a ready network beside it" if untrained else NONE_KEPT
        return f"{sentence}; {why if chosen['worth'] else 'no network of the search kept the budget'}."
    who = f"the best ready network ({rival})" if chosen["worth"] else "the searched network"
    unequal = _unequal(rows[chosen["network"]]["steps"], rows[rival]["steps"])
    late = rows[rival]["p95_ms"]
    missed = f" but takes {late:.2f} ms" if not chosen["worth"] and late > kept["budget_ms"] else ""
    return f"{sentence}; {who} reached {100 * rows[rival]['miou']:.1f} %{unequal}{missed}."


def _unequal(own: int, other: int) -> str:
    """Say that a comparison is none, where one side was trained longer than the other."""
    if own == other:
        return ""
    return f" after {other} steps of training against {own}, which is no fair comparison"


def _nothing(context: Context, why: str) -> dict[str, Json]:
    """Return the figures of a tailoring that delivers no network: those of the best that was measured or trained."""
    asked = context.recipe.request
    rows = context.outcomes.get("recommend", {}).get("networks", [])
    trained = max(rows, key=lambda row: row["miou"], default=None)
    best = trained or context.outcomes.get("choose") or context.outcomes["fastest"]
    return {
        "run": str(context.folder),
        "model": None,
        "network": best["network"],
        "miou": trained["miou"] if trained else None,
        "latency_ms": best["median_ms"],
        "p95_ms": best["p95_ms"],
        "budget_ms": asked.budget_ms,
        "met": False,
        "target": asked.target,
        "verdict": why,
    }


def _parts(context: Context, figures: Mapping[str, Any], seconds: Mapping[str, float]) -> page.Parts:
    recipe, kept = context.recipe, context.outcomes["contract"]
    facts = (
        page.Fact(name="mIoU", value=f"{100 * delivered_miou(context):.1f} %"),
        page.Fact(name="95 % within", value=f"{kept['p95_ms']:.2f} ms"),
        page.Fact(name="median", value=f"{kept['median_ms']:.2f} ms"),
        page.Fact(name="budget", value=f"{kept['budget_ms']:.4g} ms"),
    )
    return page.Parts(
        verdict=page.Verdict(sentence=str(figures["verdict"]), met=kept["met"], facts=facts),
        front=_front(context),
        layers=_layers(context),
        quality=_quality(context),
        int8=_int8(context.outcomes["int8"]),
        data=_data(context),
        choices=recipe.choices,
        stages=_stages(seconds),
        commands=_commands(recipe),
    )


def _quality(context: Context) -> page.Quality:
    """Look at every validation picture with the recommended network."""
    model, data = load_bundle(Path(context.outcomes["recommend"]["model"])), locate(context.recipe.data)
    pixels = open_pixels(data, "val", context.around.cache)
    return inspect(
        model.predict, pixels, task=data.task, names=pixels.names, note="Split 'val', whole images."
    )


def _front(context: Context) -> page.Front:
    """Every network that was trained to the end, and the candidates of the search that were measured whole."""
    points = []
    final = context.outcomes["contract"]
    for row in context.outcomes["recommend"]["networks"]:
        own, best = row["network"] == OWN, row["network"] == context.outcomes["recommend"]["network"]
        times = final if best and not context.outcomes["int8"]["kept"] else row
        rest = "searched family" if own else "baseline" if row["network"] in handmade() else "published"
        group = "winner" if best else rest
        model = load_bundle(Path(row["model"]))
        counted = count(model.architecture, image=context.recipe.image, classes=model.task.outputs)
        points.append(
            page.Point(
                name=row["network"],
                group=group,
                quality=row["miou"],
                cost=times["median_ms"],
                p95=times["p95_ms"],
                params=counted.params,
                macs=counted.macs,
                note=f"{'recommended; ' if best else ''}{row['steps']} steps of training",
            )
        )
    for row in context.outcomes["choose"]["measured"]:
        if row["quality"] is None:  # not judged by the search: it replaces one that was too slow
            continue
        points.append(
            page.Point(
                name=f"trial {row['trial']}",
                group="searched family",
                quality=row["quality"],
                cost=row["median_ms"],
                p95=row["p95_ms"],
                note="quality of the short training of the search, on held-out training pictures",
            )
        )
    return page.Front(
        points=tuple(points),
        budget=context.recipe.request.budget_ms,
        note=f"Latency is that of the whole, from a normalised picture to labels ({context.recipe.includes}).",
    )


def _layers(context: Context) -> page.LayerTimes:
    """What the device pack says each layer takes, if there is one, beside each layer timed by itself."""
    chosen, timed = context.outcomes["recommend"], context.outcomes["layers"]
    model = load_bundle(Path(chosen["model"]))
    pack = context.outcomes["pack"]["pack"]
    priced = pack and chosen["worth"]  # a ready network may have layers of another space
    return layer_times(
        expand(model.architecture, image=context.recipe.image, classes=model.task.outputs),
        price=LatencyTable(pack=read_pack(Path(pack))).price if priced else None,
        measured=timed["layers"],
        measured_ms=timed["whole_ms"],
        note="Each layer was timed by itself; the whole is the network alone, without enlarging labels.",
    )


def _int8(outcome: Mapping[str, Any]) -> page.Int8:
    if not outcome["decided"]:
        return page.Int8(decision=str(outcome["reason"]))
    rows = tuple(
        page.Precision(
            name=name,
            latency_ms=outcome[side]["median_ms"],
            p95_ms=outcome[side]["p95_ms"],
            quality=outcome[side]["miou"],
        )
        for name, side in (("fp32", "before"), ("int8", "after"))
    )
    return page.Int8(decision=str(outcome["reason"]), chosen="int8" if outcome["kept"] else "fp32", rows=rows)


def _data(context: Context) -> page.DataFindings:
    return findings_of(context.recipe.request.data, context.outcomes["data"])


def _stages(seconds: Mapping[str, float]) -> tuple[page.StageSummary, ...]:
    return tuple(
        page.StageSummary(name=name, status="done", seconds=value) for name, value in seconds.items()
    )


def _commands(recipe: TailorRecipe) -> tuple[page.Command, ...]:
    asked = recipe.request
    again = command(
        *("segtailor", "tailor", "--data", asked.data, "--target", asked.target),
        *("--budget", f"{asked.budget_ms:g}ms", "--recipe", asked.recipe, "--seed", asked.seed),
        *(("--time", f"{asked.seconds / 60:g}m") if asked.seconds else ()),
    )
    return (page.Command(text=again, note="the whole of it, again"),)

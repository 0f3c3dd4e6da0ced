"""The report of a training run: curves, quality by class, and the network."""

from __future__ import annotations

from typing import Any

from segtailor.core.codec import read_json
from segtailor.core.errors import UserError
from segtailor.core.plan import Plan, Shape, count
from segtailor.core.shipped import DESCRIPTION
from segtailor.core.space import Architecture, fingerprint_of, parse_architecture, plan_of
from segtailor.core.task import KIND_FACTS, Figure
from segtailor.core.text import command, path_argument
from segtailor.report.document import (
    Chart,
    ClassQuality,
    Command,
    DrawnNetwork,
    Fact,
    Quality,
    Report,
    Verdict,
)
from segtailor.report.fields import at, number, size, table, text, whole
from segtailor.report.folder import RunFolder, commands, conditions, present
from segtailor.report.numbers import amount, duration
from segtailor.report.parts import calibration_fact, start_fact
from segtailor.spaces import architectures, baselines, on_lite0, published

NOT_IN_CHART = ("fwiou", "mean_accuracy")  # figures that would crowd it
DEFAULT_SIZE = (512, 1024)  # height and width of the drawn network where the recipe has no crop


def training_report(run: RunFolder) -> Report:
    """Return what a training run shows; of an unfinished one what its journal holds."""
    plan, name, problem = _network(run)
    data = text(run.recipe, "data")
    split = text(run.recipe, "val_split") or "val"
    return Report(
        title=f"Training of {name}",
        subtitle=f"on {data}, seed {at(run.recipe, 'fit', 'seed')}",
        verdict=_verdict(run, name, f"'{split}' of {data}", plan),
        networks=(DrawnNetwork(name=name, plan=plan),) if plan else (),
        training=_curves(run),
        quality=_quality(run),
        conditions=conditions(run),
        commands=commands(run, *_next_commands(run, data)),
        missing=(*run.missing, *([problem] if problem else [])),
    )


def known_name(arch: Architecture) -> str:
    """Return the published name of an architecture or baseline, or its fingerprint."""
    fingerprint = fingerprint_of(arch)
    names = (*architectures(), *baselines(), *on_lite0())
    return next((name for name in names if fingerprint_of(published(name)) == fingerprint), fingerprint)


def _network(run: RunFolder) -> tuple[Plan | None, str, str]:
    """Return plan and name of the network, and why there is no plan."""
    image = size(run.recipe, "augment", "crop") or DEFAULT_SIZE
    try:
        arch = parse_architecture(run.recipe.get("architecture"), what="architecture of the recipe")
        plan = plan_of(arch, Shape(3, *image), max(1, len(table(run.result, "per_class"))))
        return plan, known_name(arch), ""
    except UserError as problem:
        return None, "a network", f"the network cannot be drawn: {problem}"


def _verdict(run: RunFolder, name: str, data: str, plan: Plan | None) -> Verdict:
    figures = _figures(run)
    headline = figures[0]
    best = number(run.result, headline.name)
    steps = whole(run.result, "steps")
    if run.finished and best is not None:
        sentence = f"{name} reaches {headline.told(best)} {headline.label} on {data} after {steps} steps."
    elif run.finished:
        sentence = f"{name} was trained for {steps} steps; it was not validated."
    else:
        logged = [row.step.metrics[headline.name] for row in run.steps if headline.name in row.step.metrics]
        so_far = f"; the best so far is {headline.told(max(logged))} {headline.label}" if logged else ""
        sentence = f"The training of {name} is not finished: {run.progress}{so_far}."
    facts = [
        Fact(name=figure.label, value=figure.told(number(run.result, figure.name)))
        for figure in figures
        if number(run.result, figure.name) is not None
    ]
    if plan is not None:
        facts.append(Fact(name="parameters", value=amount(count(plan).params)))
    if "start" in run.result:
        facts.append(start_fact(run.result["start"]))
    facts += calibration_fact(table(_bundle(run), "numbers"))
    facts.append(Fact(name="time", value=duration(run.seconds)))
    return Verdict(sentence=sentence, facts=tuple(facts))


def _figures(run: RunFolder) -> tuple[Figure, ...]:
    """Return the figures of the task that was trained: those whose headline the run has."""
    known = {name for row in run.steps for name in row.step.metrics} | set(run.result)
    kinds = list(KIND_FACTS.values())
    return next((kind.figures for kind in kinds if kind.headline.name in known), kinds[0].figures)


def _curves(run: RunFolder) -> tuple[Chart, ...]:
    figures = _figures(run)
    shares = [(one.name, one.label) for one in figures if one.unit == "%" and one.name not in NOT_IN_CHART]
    errors = [(one.name, one.label) for one in figures if one.unit != "%"]
    return present(
        [
            run.curve("Loss", [("loss", "loss")], y="loss"),
            run.curve("Quality on the validation split", shares, y="%", factor=100),
            run.curve("Errors on the validation split", errors, y="error"),
            run.curve("Learning rate", [("lr", "learning rate")], y="rate"),
            run.curve("Speed", [("images_per_s", "images per second")], y="images per second"),
        ]
    )


def _quality(run: RunFolder) -> Quality | None:
    per_class = table(run.result, "per_class")
    scored = {name: row for name, row in per_class.items() if not isinstance(row, dict) or "iou" in row}
    if not scored:
        return None
    palette = _palette(run)
    classes = tuple(
        ClassQuality(
            name=name, iou=number(row, "iou"), accuracy=number(row, "accuracy"), colour=palette.get(name)
        )
        for name, row in scored.items()
    )
    return Quality(classes=classes, miou=number(run.result, "miou"))


def _palette(run: RunFolder) -> dict[str, tuple[int, int, int]]:
    """Return the colours of the classes from the bundle, where there is one."""
    task = table(_bundle(run), "task")
    names, colours = at(task, "classes"), at(task, "palette")
    if not isinstance(names, list) or not isinstance(colours, list):
        return {}
    valid = all(
        isinstance(colour, list) and len(colour) == 3 and all(isinstance(part, int) for part in colour)
        for colour in colours
    )
    return {str(name): tuple(colour) for name, colour in zip(names, colours, strict=False)} if valid else {}


def _bundle(run: RunFolder) -> dict[str, Any]:
    """Return the description of the trained bundle; it is empty where there is none."""
    try:
        document = read_json(run.layout.weights / DESCRIPTION, what="bundle")
    except UserError:
        return {}
    return document if isinstance(document, dict) else {}


def _next_commands(run: RunFolder, data: str) -> list[Command]:
    if not run.finished:
        return []
    score = command("segtailor", "eval", path_argument(run.layout.weights), "--data", data)
    return [Command(text=score, note="Score the trained network:")]

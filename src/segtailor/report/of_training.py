"""The report of a training run."""

from __future__ import annotations

from typing import Any

from segtailor.core.codec import read_json
from segtailor.core.errors import UserError
from segtailor.core.plan import Plan, Shape, count
from segtailor.core.space import Architecture, fingerprint_of, parse_architecture, plan_of
from segtailor.core.task import KIND_FACTS, Figure
from segtailor.core.text import command, path_argument
from segtailor.report.document import ClassQuality, Command, DrawnNetwork, Fact, Quality, Report, Verdict
from segtailor.report.fields import at, number, size, table, text, whole
from segtailor.report.folder import RunFolder, present
from segtailor.report.numbers import amount, duration
from segtailor.report.surroundings import commands, conditions
from segtailor.spaces import architectures, baselines, published

RARELY = ("fwiou", "mean_accuracy")  # figures that would crowd the chart
USUAL = (512, 1024)  # the size to draw at where the recipe has no crop


def training_report(run: RunFolder) -> Report:
    """Return what a training run shows: curves, quality by class, the network."""
    plan, name, problem = _network(run)
    data = text(run.recipe, "data")
    found = text(run.recipe, "val_split") or "val"
    return Report(
        title=f"Training of {name}",
        subtitle=f"on {data}, seed {at(run.recipe, 'fit', 'seed')}",
        verdict=_verdict(run, name, f"'{found}' of {data}", plan),
        networks=(DrawnNetwork(name=name, plan=plan),) if plan else (),
        training=_curves(run),
        quality=_quality(run),
        conditions=conditions(run),
        commands=commands(run, *_next(run, data)),
        missing=(*run.missing, *([problem] if problem else [])),
    )


def known_name(arch: Architecture) -> str:
    """Return the published name of an architecture or baseline, or its fingerprint."""
    print_ = fingerprint_of(arch)
    return next(
        (name for name in (*architectures(), *baselines()) if fingerprint_of(published(name)) == print_),
        print_,
    )


def _network(run: RunFolder) -> tuple[Plan | None, str, str]:
    """Return plan and name of the network, and what prevented that."""
    image = size(run.recipe, "augment", "crop") or USUAL
    try:
        arch = parse_architecture(run.recipe.get("architecture"), what="architecture of the recipe")
        return (
            plan_of(arch, Shape(3, *image), max(1, len(table(run.result, "per_class")))),
            known_name(arch),
            "",
        )
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
        seen = [row.step.metrics[headline.name] for row in run.steps if headline.name in row.step.metrics]
        far = f"; the best so far is {headline.told(max(seen))} {headline.label}" if seen else ""
        sentence = f"The training of {name} is not finished: {run.progress}{far}."
    facts = [
        Fact(name=figure.label, value=figure.told(number(run.result, figure.name)))
        for figure in figures
        if number(run.result, figure.name) is not None
    ]
    if plan is not None:
        sizes = count(plan)
        facts.append(Fact(name="parameters", value=amount(sizes.params)))
    facts.append(Fact(name="time", value=duration(run.seconds)))
    return Verdict(sentence=sentence, facts=tuple(facts))


def _figures(run: RunFolder) -> tuple[Figure, ...]:
    """Return the figures of the task that was trained: those whose headline the run has."""
    known = {name for row in run.steps for name in row.step.metrics} | set(run.result)
    kinds = list(KIND_FACTS.values())
    return next((kind.figures for kind in kinds if kind.headline.name in known), kinds[0].figures)


def _curves(run: RunFolder) -> tuple[Any, ...]:
    figures = _figures(run)
    shares = [one for one in figures if one.unit == "%" and one.name not in RARELY]
    errors = [one for one in figures if one.unit != "%"]
    return present(
        [
            run.curve("Loss", [("loss", "loss")], y="loss"),
            run.curve(
                "Quality on the validation split",
                [(one.name, one.label) for one in shares],
                y="%",
                factor=100,
            ),
            run.curve("Errors on the validation split", [(one.name, one.label) for one in errors], y="error"),
            run.curve("Learning rate", [("lr", "learning rate")], y="rate"),
            run.curve("Speed", [("images_per_s", "images per second")], y="images per second"),
        ]
    )


def _quality(run: RunFolder) -> Quality | None:
    parts = table(run.result, "per_class")
    found = {name: row for name, row in parts.items() if not isinstance(row, dict) or "iou" in row}
    if not found:
        return None
    palette = _palette(run)
    classes = tuple(
        ClassQuality(
            name=name, iou=number(row, "iou"), accuracy=number(row, "accuracy"), colour=palette.get(name)
        )
        for name, row in found.items()
    )
    return Quality(classes=classes, miou=number(run.result, "miou"))


def _palette(run: RunFolder) -> dict[str, tuple[int, int, int]]:
    """Return the colours of the classes from the bundle, where there is one."""
    try:
        task = table(read_json(run.layout.weights / "model.json", what="bundle"), "task")
    except UserError:
        return {}
    names, colours = at(task, "classes"), at(task, "palette")
    if not isinstance(names, list) or not isinstance(colours, list):
        return {}
    fit = [
        isinstance(colour, list) and len(colour) == 3 and all(isinstance(part, int) for part in colour)
        for colour in colours
    ]
    return (
        {str(name): tuple(colour) for name, colour in zip(names, colours, strict=False)} if all(fit) else {}
    )


def _next(run: RunFolder, data: str) -> list[Command]:
    if not run.finished:
        return []
    score = command("segtailor", "eval", path_argument(run.layout.weights), "--data", data)
    return [Command(text=score, note="Score the trained network:")]

"""A report as one HTML file: style, script, plots and pictures are inside, nothing is fetched, all text is escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from segtailor.core.plan import count
from segtailor.core.text import visible
from segtailor.report import numbers, plots
from segtailor.report.comparison import Comparison
from segtailor.report.document import (
    Budgets,
    ClassQuality,
    DrawnNetwork,
    Fact,
    LayerTime,
    LayerTimes,
    Offer,
    Point,
    Quality,
    Report,
    Split,
    TableTrust,
)
from segtailor.report.drawing import draw_plan

MAX_LAYER_ROWS = 28  # of the table of layers; the last row sums up the others
MAX_NETWORK_ROWS = 40
BUDGET_SLACK = 1.01  # a budget is rounded, and must not be below the cost
MAX_CLASSES = 40  # of a printed confusion matrix, and of the table of class shares
MAX_CONFUSIONS = 5  # in the list of common mistakes
MIN_CONFUSION_SHARE = 0.01  # of the pixels of a class; a smaller confusion is not listed
MAX_STRIPS = 60  # of decisions with the same options
MAX_PICTURES = 4  # of a kind: the file stays below 2 MB
LONG_GROUP = 12  # groups with more facts are folded

SECTIONS = (
    ("verdict", "Verdict", "verdict"),
    ("front", "Quality against cost", "front"),
    ("budgets", "Budgets", "budgets"),
    ("network", "Network", "networks"),
    ("search", "Search", "search"),
    ("training", "Training", "training"),
    ("layers", "Layers", "layers"),
    ("classes", "Classes", "quality"),
    ("pictures", "Pictures", "quality.pictures"),
    ("confusion", "Confusion", "quality.confusion"),
    ("trust", "Trust", "trust"),
    ("int8", "Eight bits", "int8"),
    ("data", "Data", "data"),
    ("choices", "Settings", "choices"),
    ("stages", "Stages", "stages"),
    ("conditions", "Conditions", "conditions"),
    ("commands", "Commands", "commands"),
)  # id, name, field of the report


def render(report: Report) -> str:
    """Return the page of one report."""
    return _page("report.html.j2", report.title, report.subtitle, sections(report), report=report)


def render_comparison(comparison: Comparison) -> str:
    """Return the page that compares runs."""
    return _page(
        "comparison.html.j2",
        comparison.title,
        comparison.subtitle,
        comparison.sections(),
        comparison=comparison,
    )


def sections(report: Report) -> list[tuple[str, str]]:
    """Return id and name of the sections that this report has."""
    return [(section, name) for section, name, field in SECTIONS if _has(report, field)]


def _has(report: Report, field: str) -> bool:
    value: object = report
    for name in field.split("."):
        value = getattr(value, name, None)
    return bool(value)


def _page(template: str, title: str, subtitle: str, sections: list[tuple[str, str]], **content: Any) -> str:
    script = _resource("script.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        _environment()
        .get_template(template)
        .render(
            title=title,
            subtitle=subtitle,
            sections=sections,
            style=Markup(_resource("style.css")),
            script=Markup(script),
            script_hash=f"sha256-{digest}",
            **content,
        )
    )


def _resource(name: str) -> str:
    return resources.files("segtailor.report").joinpath("templates", name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    """Return the templates with everything that they may call; functions that draw escape the text they are given."""
    environment = Environment(
        loader=PackageLoader("segtailor.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    filters = (
        numbers.percent,
        numbers.milliseconds,
        numbers.amount,
        numbers.duration,
        numbers.size,
        numbers.significant,
    )
    drawings = (plots.front_plot, plots.line_chart, plots.trust_plot, plots.strip, drawing)
    tables = (
        network_facts,
        trust_facts,
        layer_facts,
        layer_rows,
        table_points,
        offers,
        budget_text,
        offer_command,
        confusion_rows,
        largest_confusions,
        class_names,
        plots.decision_groups,
        numbers.share_of,
    )
    environment.filters |= {function.__name__: function for function in filters}
    environment.globals |= {function.__name__: _as_markup(function) for function in drawings}
    environment.globals |= {function.__name__: function for function in tables}
    environment.globals |= {
        "most_strips": MAX_STRIPS,
        "most_pictures": MAX_PICTURES,
        "long_group": LONG_GROUP,
        "most_rows": MAX_NETWORK_ROWS,
        "most_classes": MAX_CLASSES,
    }
    return environment


def _shown(value: Any) -> Any:
    """Make every character of a value visible; markup was made so when it was written."""
    return visible(value, lines=True) if isinstance(value, str) and not isinstance(value, Markup) else value


def _as_markup(draw: Callable[..., str]) -> Callable[..., Markup]:
    def drawn(*values: Any) -> Markup:
        return Markup(draw(*values))

    return drawn


def drawing(network: DrawnNetwork) -> str:
    """Draw a network across the page."""
    return draw_plan(network.plan, title=f"Drawing of {network.name}", embedded=True)


def network_facts(network: DrawnNetwork) -> list[Fact]:
    """Return the size of a network."""
    plan = network.plan
    sizes = count(plan)
    return [
        Fact(name="multiply-accumulates", value=numbers.amount(sizes.macs)),
        Fact(name="parameters", value=numbers.amount(sizes.params)),
        Fact(name="image", value=f"{plan.image.height} × {plan.image.width}"),
        Fact(name="output stride", value=f"{plan.output_stride:g}"),
        Fact(name="layers", value=str(len(plan.deployed().nodes))),
    ]


def trust_facts(trust: TableTrust) -> list[Fact]:
    """Return how well the prices of a table agree with measurements."""
    return [
        Fact(name="Pearson correlation", value=f"{trust.pearson:.3f}"),
        Fact(name="Spearman correlation", value=f"{trust.spearman:.3f}"),
        Fact(name="mean error", value=numbers.percent(trust.mape)),
        Fact(name="networks", value=str(len(trust.points))),
        *trust.facts,
    ]


def layer_facts(layers: LayerTimes) -> list[Fact]:
    """Return the totals, and the error of the estimate."""
    facts = [
        Fact(name="estimate of the whole", value=numbers.milliseconds(layers.estimated_ms)),
        Fact(name="measured whole", value=numbers.milliseconds(layers.measured_ms)),
    ]
    if layers.estimated_ms is not None and layers.measured_ms:
        error = 100 * (layers.estimated_ms / layers.measured_ms - 1)
        facts.append(Fact(name="estimate is off by", value=f"{error:+.1f} %"))
    return facts


def layer_rows(layers: LayerTimes) -> list[LayerTime]:
    """Return the layers in order; where there are too many, the slowest, and one row for all others."""
    rows = list(layers.layers)
    if len(rows) <= MAX_LAYER_ROWS:
        return rows
    ranked = sorted(range(len(rows)), key=lambda index: -_milliseconds(rows[index]))
    slowest = sorted(ranked[: MAX_LAYER_ROWS - 1])
    others = [rows[index] for index in ranked[MAX_LAYER_ROWS - 1 :]]
    rest = LayerTime(
        name=f"{len(others)} others",
        operator="",
        estimated_ms=_total([row.estimated_ms for row in others]),
        measured_ms=_total([row.measured_ms for row in others]),
    )
    return [*(rows[index] for index in slowest), rest]


def _milliseconds(layer: LayerTime) -> float:
    return layer.measured_ms if layer.measured_ms is not None else layer.estimated_ms or 0.0


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def table_points(points: Sequence[Point]) -> list[Point]:
    """Return the points of the table, cheapest first; where there are too many, the best ones."""
    best = sorted(points, key=lambda point: (point.group != "winner", -point.quality))[:MAX_NETWORK_ROWS]
    return sorted(best, key=lambda point: (point.cost, -point.quality))


def offers(budgets: Budgets) -> list[Offer]:
    """Return what budgets can get, cheapest first; where there are too many, the best ones."""
    best = sorted(budgets.offers, key=lambda one: -one.worth)[:MAX_NETWORK_ROWS]
    return sorted(best, key=lambda one: (one.cost, -one.quality))


def budget_text(budgets: Budgets) -> str:
    """Return the budget that is shown first, as a flag takes it: that of the run, or what the best offer costs."""
    best = budgets.best()
    value = budgets.budget or (best.cost if best else 0.0)
    return f"{numbers.significant(value * (1.0 if budgets.budget else BUDGET_SLACK))}{budgets.unit}"


def offer_command(budgets: Budgets) -> str:
    """Return the command that exports what is shown first."""
    best = budgets.best()
    if not budgets.before:
        return best.command if best else ""
    return f"{budgets.before} {budget_text(budgets)} {budgets.after}"


def confusion_rows(quality: Quality) -> list[tuple[ClassQuality, list[float]]]:
    """Return each class with the shares of its pixels by predicted class."""
    return [
        (row, [value / (sum(counts) or 1) for value in counts])
        for row, counts in zip(quality.classes, quality.confusion, strict=True)
    ]


def largest_confusions(quality: Quality) -> list[tuple[str, str, float]]:
    """Return truth, prediction and share of the commonest mistakes, largest first."""
    mistakes = [
        (row.name, quality.classes[column].name, share)
        for index, (row, shares) in enumerate(confusion_rows(quality))
        for column, share in enumerate(shares)
        if column != index and share >= MIN_CONFUSION_SHARE
    ]
    return sorted(mistakes, key=lambda mistake: -mistake[2])[:MAX_CONFUSIONS]


def class_names(splits: Sequence[Split]) -> list[str]:
    """Return the classes of all splits in order; none where there are too many to print."""
    names = list(dict.fromkeys(name for split in splits for name, _ in split.shares))
    return names if len(names) <= MAX_CLASSES else []

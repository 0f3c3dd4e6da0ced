"""What templates ask of a report beyond its fields: figures in words, rows in order, the largest mistakes."""

from __future__ import annotations

from collections.abc import Sequence

from segtailor.core.plan import count
from segtailor.report.document import (
    ClassQuality,
    DrawnNetwork,
    Fact,
    LayerTime,
    LayerTimes,
    Point,
    Quality,
    Report,
    Split,
    TableTrust,
)
from segtailor.report.numbers import amount, milliseconds, percent

MOST_LAYERS = 28  # rows of the table of layers; the others share one
MOST_ROWS = 40  # of the table of networks
MOST_CLASSES = 40  # of a printed confusion matrix, and of columns of class shares
MISTAKES = 5
NOTABLE = 0.01  # a confusion of less than this share of a class is not worth a line

SECTIONS = (
    ("verdict", "Verdict", "verdict"),
    ("front", "Quality against cost", "front"),
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
)  # id, name, field


def sections(report: Report) -> list[tuple[str, str]]:
    """Return id and name of the sections that this report has."""
    return [(place, name) for place, name, field in SECTIONS if _there(report, field)]


def network_facts(network: DrawnNetwork) -> list[Fact]:
    """Return the size of a network."""
    plan = network.plan
    sizes = count(plan)
    return [
        Fact(name="multiply-accumulates", value=amount(sizes.macs)),
        Fact(name="parameters", value=amount(sizes.params)),
        Fact(name="image", value=f"{plan.image.height} × {plan.image.width}"),
        Fact(name="output stride", value=f"{plan.output_stride:g}"),
        Fact(name="layers", value=str(len(plan.deployed().nodes))),
    ]


def trust_facts(trust: TableTrust) -> list[Fact]:
    """Return the figures of a trust report."""
    return [
        Fact(name="Pearson correlation", value=f"{trust.pearson:.3f}"),
        Fact(name="Spearman correlation", value=f"{trust.spearman:.3f}"),
        Fact(name="mean error", value=percent(trust.mape)),
        Fact(name="networks", value=str(len(trust.points))),
        *trust.facts,
    ]


def layer_facts(layers: LayerTimes) -> list[Fact]:
    """Return the totals, and how far the estimate is off."""
    found = [Fact(name="estimate of the whole", value=milliseconds(layers.estimated_ms))]
    found.append(Fact(name="measured whole", value=milliseconds(layers.measured_ms)))
    if layers.estimated_ms is not None and layers.measured_ms:
        found.append(
            Fact(
                name="estimate is off by",
                value=f"{100 * (layers.estimated_ms / layers.measured_ms - 1):+.1f} %",
            )
        )
    return found


def layer_rows(layers: LayerTimes) -> list[LayerTime]:
    """Return the layers in order; of very many only the longest, and one row for all others."""
    rows = list(layers.layers)
    if len(rows) <= MOST_LAYERS:
        return rows
    ranked = sorted(range(len(rows)), key=lambda index: -_time(rows[index]))
    kept = sorted(ranked[: MOST_LAYERS - 1])
    others = [rows[index] for index in ranked[MOST_LAYERS - 1 :]]
    rest = LayerTime(
        name=f"{len(others)} others",
        operator="",
        estimated_ms=_total([row.estimated_ms for row in others]),
        measured_ms=_total([row.measured_ms for row in others]),
    )
    return [*(rows[index] for index in kept), rest]


def table_points(points: Sequence[Point]) -> list[Point]:
    """Return the points of the table, cheapest first; of very many the best ones."""
    best = sorted(points, key=lambda point: (point.group != "winner", -point.quality))[:MOST_ROWS]
    return sorted(best, key=lambda point: (point.cost, -point.quality))


def confusion_rows(quality: Quality) -> list[tuple[ClassQuality, list[float]]]:
    """Return each class with the shares of its pixels by predicted class."""
    return [
        (row, [value / (sum(counts) or 1) for value in counts])
        for row, counts in zip(quality.classes, quality.confusion, strict=True)
    ]


def largest_confusions(quality: Quality) -> list[tuple[str, str, float]]:
    """Return truth, prediction and share of the commonest mistakes, largest first."""
    found = [
        (row.name, quality.classes[column].name, share)
        for index, (row, shares) in enumerate(confusion_rows(quality))
        for column, share in enumerate(shares)
        if column != index and share >= NOTABLE
    ]
    return sorted(found, key=lambda item: -item[2])[:MISTAKES]


def class_names(splits: Sequence[Split]) -> list[str]:
    """Return the classes of all splits in order; none where there are too many to print."""
    names = list(dict.fromkeys(name for split in splits for name, _ in split.shares))
    return names if len(names) <= MOST_CLASSES else []


def _there(report: Report, field: str) -> bool:
    value: object = report
    for name in field.split("."):
        value = getattr(value, name, None)
    return bool(value)


def _time(layer: LayerTime) -> float:
    return layer.measured_ms if layer.measured_ms is not None else layer.estimated_ms or 0.0


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None

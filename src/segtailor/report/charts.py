"""Charts in files of their own: the front of a search, the prices of a device pack, bars or lines of a study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from segtailor.costs.pack import Trust
from segtailor.report.numbers import short
from segtailor.report.svg import (
    COLOURS,
    Axis,
    Plot,
    axis,
    element,
    label,
    mark,
    path,
    percents,
    stretched,
    tip,
)

BARS_SHARE_OF_GROUP = 0.8  # the rest is the gap between the groups
MAX_BAR_PERCENT = 7.7  # width of a bar in percent of the plot
BAR_GAP_PERCENT = 0.3
NAME_ROOM_PERCENT = 86  # a mark further to the right has its name on the left


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One judged network; `label` appears under the pointer, `name` beside the mark."""

    id: int
    cost: float
    quality: float
    label: str = ""
    name: str = ""


def draw_front(
    marks: Sequence[Mark],
    *,
    title: str,
    unit: str,
    path: Sequence[int] = (),
    path_name: str = "front",
    measure: str = "mIoU",
) -> str:
    """Return quality over cost as SVG; `path` holds the ids of the marks to join, `measure` names the quality."""
    costs = axis([one.cost for one in marks] or [1.0], spread=True)
    plot = Plot(
        x=costs,
        y=axis([100 * one.quality for one in marks] or [0.0], upwards=True),
        x_name=f"cost in {unit}{', logarithmic' if costs.logarithmic else ''}",
        y_name=f"{measure} in % on the judging half",
    )
    by_id = {one.id: one for one in marks}
    chosen = [by_id[number] for number in path if number in by_id]
    others = [one for one in marks if one not in chosen]
    parts = [
        *(part for one in others for part in _network(one, plot, shape="small", kind="trial")),
        _joined([plot.place(one.cost, 100 * one.quality) for one in chosen], kind="line chosen"),
        *(part for one in chosen for part in _network(one, plot, shape="circle", kind="chosen")),
    ]
    legend = [
        (f"{len(marks)} trials", "small", "trial"),
        (f"{path_name} of {len(chosen)}", "circle", "chosen"),
    ]
    return plot.in_file(parts, title=title, legend=legend)


def draw_trust(trust: Trust, *, title: str) -> str:
    """Return predicted over measured milliseconds as SVG; on the dashed line they agree."""
    values = [value for one in trust.networks for value in (one.predicted_ms, one.measured_ms)]
    plot = Plot(
        x=axis(values, zero=True),
        y=axis(values, zero=True, upwards=True),
        x_name="measured, ms",
        y_name="predicted, ms",
    )
    marks = [
        mark(
            plot.place(one.measured_ms, one.predicted_ms), shape="circle", kind="s0", content=one.fingerprint
        )
        for one in trust.networks
    ]
    summary = (
        f"Pearson {trust.pearson:.4f}, Spearman {trust.spearman:.4f}, error {100 * trust.mape:.1f} %, "
        f"{len(trust.networks)} networks"
    )
    diagonal = _joined([(0.0, 100.0), (100.0, 0.0)], kind="line guide")
    return plot.in_file([diagonal, *marks], title=title, subtitle=summary, width=460, height=482)


class Value(NamedTuple):
    """One bar or point: series, category, height, and the text under the pointer."""

    series: str
    label: str
    value: float
    hint: str = ""


def draw_chart(chart_data: Mapping[str, Any]) -> str:
    """Draw a chart given as plain data: title, subtitle, unit, lines, and `values` as [series, label, value]."""
    values = [
        Value(str(row[0]), str(row[1]), float(row[2]), f"{row[0]} {row[1]}: {row[2]:.4g}")
        for row in chart_data["values"]
    ]
    return chart(
        values,
        title=chart_data["title"],
        subtitle=chart_data["subtitle"],
        unit=chart_data["unit"],
        lines=chart_data["lines"],
    )


def chart(values: Sequence[Value], *, title: str, subtitle: str, unit: str, lines: bool = False) -> str:
    """Return values as SVG: bars grouped by label, or one line per series."""
    labels = tuple(dict.fromkeys(value.label for value in values))
    series = list(dict.fromkeys(value.series for value in values))
    heights = [0.0, *(value.value for value in values)]
    plot = Plot(
        x=Axis(low=-0.5, high=max(1, len(labels)) - 0.5),
        y=axis(heights, zero=min(heights) == 0, upwards=True),
        x_name="",
        y_name=unit,
        categories=labels,
    )
    parts = list(_lines(values, plot, series) if lines else _bars(values, plot, series))
    legend = [(name, "square", _colour(index)) for index, name in enumerate(series)]
    return plot.in_file(
        parts, title=title, subtitle=subtitle, legend=legend if len(series) > 1 else (), width=720, height=380
    )


def _network(one: Mark, plot: Plot, *, shape: str, kind: str) -> Iterator[str]:
    place = plot.place(one.cost, 100 * one.quality)
    content = f"{one.label or one.id}: {100 * one.quality:.2f} % at {short(one.cost)}"
    yield mark(place, shape=shape, kind=kind, content=content)
    if one.name:
        anchor, right = ("end", -9) if place[0] > NAME_ROOM_PERCENT else ("start", 9)
        yield label(place, one.name, anchor=anchor, shift=(right, 4))


def _bars(values: Sequence[Value], plot: Plot, series: list[str]) -> Iterator[str]:
    group = 100 / len(plot.categories) if plot.categories else 100.0
    width = min(MAX_BAR_PERCENT, BARS_SHARE_OF_GROUP * group / len(series)) if series else 0.0
    base = plot.y.at(0.0)
    for value in values:
        index = series.index(value.series)
        centre, end = plot.place(plot.categories.index(value.label), value.value)
        yield element(
            "rect",
            tip(value.hint),
            kind=f"bar {_colour(index)}",
            x=percents(centre + (index - len(series) / 2) * width),
            y=percents(min(base, end)),
            width=percents(max(BAR_GAP_PERCENT, width - BAR_GAP_PERCENT)),
            height=percents(abs(base - end)),
            rx=2,
        )


def _lines(values: Sequence[Value], plot: Plot, series: list[str]) -> Iterator[str]:
    for index, name in enumerate(series):
        members = [value for value in values if value.series == name]
        places = [plot.place(plot.categories.index(value.label), value.value) for value in members]
        yield _joined(places, kind=f"line {_colour(index)}")
        for value, place in zip(members, places, strict=True):
            yield mark(place, shape="small", kind=_colour(index), content=value.hint)


def _joined(places: Sequence[tuple[float, float]], *, kind: str) -> str:
    return stretched([path(places, kind=kind)]) if len(places) > 1 else ""


def _colour(index: int) -> str:
    return f"s{index % len(COLOURS)}"

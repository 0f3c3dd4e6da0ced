"""The plots of a report: quality against cost, curves over time, prices against measurements, moving probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from segtailor.report.document import Chart, Front, Point, Series, TableTrust
from segtailor.report.labels import labelled
from segtailor.report.numbers import amount, milliseconds, percent, significant
from segtailor.report.plotting import SERIES, Frame, axis, drawable, label, legend, mark, path, stretched

T = TypeVar("T")
GROUPS = {
    "trial": ("small", "g-trial"),
    "published": ("square", "g-published"),
    "baseline": ("triangle", "g-baseline"),
    "searched family": ("circle", "g-family"),
    "teacher": ("diamond", "g-teacher"),
    "winner": ("star", "g-winner"),
}  # from the back of the plot to its front
MOST_MARKS = 400  # drawn of one group or series: more would only hide one another


def front_plot(front: Front) -> str:
    """Draw quality over cost, the groups in their shapes, the budget as a line."""
    points = [point for point in front.points if drawable(point.cost, point.quality)]
    costs = [point.cost for point in points] + ([front.budget] if front.budget is not None else [])
    scale = axis(costs, spread=True)
    frame = Frame(
        x=scale,
        y=axis([100 * point.quality for point in points], upwards=True),
        x_name=f"{front.cost_name} in {front.unit}{', logarithmic' if scale.logarithmic else ''}",
        y_name=f"{front.quality_name} in %",
    )
    looks = group_looks(points)
    drawn = [point for group in looks for point in thinned([one for one in points if one.group == group])]
    marks = [_point(point, frame, looks, front.unit) for point in drawn]
    alt = (
        f"{front.quality_name} against {front.cost_name} of {len(points)} networks"
        + (f"; the budget is {amount(front.budget, front.unit)}" if front.budget is not None else "")
        + ". The table below holds the same figures."
    )
    named = [point for point in drawn if point.group != "trial"]
    parts = [*_budget(front, frame), stretched(_lines(front, points, frame)), *marks, *labelled(named, frame)]
    return frame.drawn(parts, alt=alt) + legend((name, *look) for name, look in reversed(looks.items()))


def group_looks(points: Sequence[Point]) -> dict[str, tuple[str, str]]:
    """Return shape and colour of every group there is, in the order of drawing; unknown groups take the next colour."""
    present = dict.fromkeys(point.group for point in points)
    others = [name for name in present if name not in GROUPS]
    known = {name: look for name, look in GROUPS.items() if name in present}
    return {name: ("circle", f"s{index % SERIES}") for index, name in enumerate(others)} | known


def best_at_each_cost(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other one beats in quality at the same cost or less, cheapest first."""
    front: list[Point] = []
    for point in sorted(points, key=lambda item: (item.cost, -item.quality)):
        if not front or point.quality > front[-1].quality:
            front.append(point)
    return front


def line_chart(chart: Chart) -> str:
    """Draw curves, or dots, over a common axis."""
    clean = [_finite(series) for series in chart.series]
    places = [value for series in clean for value in series.x]
    heights = [value for series in clean for value in series.y]
    frame = Frame(
        x=axis(places, zero=bool(places) and min(places) >= 0),
        y=axis(heights, upwards=True),
        x_name=chart.x_name,
        y_name=chart.y_name,
    )
    lines, marks = [], []
    for index, series in enumerate(clean):
        kind = f"s{index % SERIES}"
        points = thinned(list(zip(series.x, series.y, strict=True)))
        if not chart.dots:
            lines.append(path([frame.place(x, y) for x, y in points], kind=f"line {kind}"))
        marks += [
            mark(
                frame.place(x, y),
                shape="small",
                kind=kind if chart.dots or len(points) < 3 else f"{kind} faint",
                tip=f"{series.name}\n{chart.x_name} {x:g}: {significant(y, 4)}",
            )
            for x, y in points
        ]
    keys = legend((series.name, "circle", f"s{index % SERIES}") for index, series in enumerate(clean))
    plot = frame.drawn(
        [stretched(lines), *marks], alt=f"{chart.title}: {chart.y_name} over {chart.x_name}", kind="low"
    )
    return plot + (keys if len(clean) > 1 else "")


def trust_plot(trust: TableTrust) -> str:
    """Draw predicted over measured milliseconds; on the diagonal they agree."""
    points = [point for point in trust.points if drawable(point.predicted_ms, point.measured_ms)]
    values = [value for point in points for value in (point.predicted_ms, point.measured_ms)]
    frame = Frame(
        x=axis(values),
        y=axis(values, upwards=True),
        x_name="measured whole, ms",
        y_name="predicted by the table, ms",
    )
    marks = [
        mark(
            frame.place(point.measured_ms, point.predicted_ms),
            shape="circle",
            kind="s6 hollow" if point.disturbed else "s0",
            tip=f"{point.name}\npredicted {milliseconds(point.predicted_ms)}, measured "
            f"{milliseconds(point.measured_ms)}"
            + ("\ndisturbed by other programs" if point.disturbed else ""),
        )
        for point in points
    ]
    diagonal = stretched([path([(0, 100), (100, 0)], kind="line guide")])
    keys = [("undisturbed", "circle", "s0")]
    if any(point.disturbed for point in trust.points):
        keys.append(("disturbed by other programs", "circle", "s6 hollow"))
    alt = f"Predicted against measured latency of {len(trust.points)} networks, Pearson {trust.pearson:.3f}."
    return frame.drawn([diagonal, *marks], alt=alt, kind="square") + legend(keys)


def thinned(items: Sequence[T], most: int = MOST_MARKS) -> list[T]:
    """Return at most so many items, evenly chosen, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(index * (len(items) - 1) / (most - 1))] for index in range(most)]


def _point(point: Point, frame: Frame, looks: dict[str, tuple[str, str]], unit: str) -> str:
    shape, kind = looks[point.group]
    facts = [f"{percent(point.quality, 2)} at {amount(point.cost, unit)}"]
    facts += [f"95 % of runs within {amount(point.p95, unit)}"] if point.p95 is not None else []
    facts += [f"{amount(point.params)} parameters"] if point.params is not None else []
    facts += [f"{amount(point.macs)} multiply-accumulates"] if point.macs is not None else []
    tip = "\n".join([f"{point.name} ({point.group})", *facts, *([point.note] if point.note else [])])
    return mark(frame.place(point.cost, 100 * point.quality), shape=shape, kind=kind, tip=tip)


def _budget(front: Front, frame: Frame) -> list[str]:
    if front.budget is None:
        return []
    at = frame.x.at(front.budget)
    side = ("end", -6) if at > 60 else ("start", 6)
    return [
        f'<rect class="beyond" x="{at:.2f}%" y="0" width="{max(0.0, 100 - at):.2f}%" height="100%"/>',
        f'<line class="budget" x1="{at:.2f}%" x2="{at:.2f}%" y1="0" y2="100%"/>',
        label((at, 0), f"budget {amount(front.budget, front.unit)}", anchor=side[0], shift=(side[1], 12)),
    ]


def _lines(front: Front, points: Sequence[Point], frame: Frame) -> Iterator[str]:
    """Yield the stairs of the best at each cost, and the path that was asked for."""
    stairs: list[tuple[float, float]] = []
    for point in best_at_each_cost(points):
        x, y = frame.place(point.cost, 100 * point.quality)
        stairs += [(x, stairs[-1][1]), (x, y)] if stairs else [(x, 100.0), (x, y)]
    if stairs:
        yield path([*stairs, (100.0, stairs[-1][1])], kind="line stairs")
    by_name = {point.name: point for point in points}
    joined = [by_name[name] for name in front.path if name in by_name]
    yield path([frame.place(point.cost, 100 * point.quality) for point in joined], kind="line g-family")


def _finite(series: Series) -> Series:
    pairs = [(x, y) for x, y in zip(series.x, series.y, strict=True) if drawable(x, y)]
    return Series(name=series.name, x=tuple(x for x, _ in pairs), y=tuple(y for _, y in pairs))

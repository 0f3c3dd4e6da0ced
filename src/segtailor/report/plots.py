"""The plots of a page: quality against cost, curves over time, prices against measurements, moving probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from segtailor.core.text import escaped
from segtailor.report.document import Chart, DecisionStory, Front, Point, Series, TableTrust
from segtailor.report.numbers import amount, milliseconds, percent, significant
from segtailor.report.svg import (
    PAGE_COLOURS,
    Plot,
    Position,
    axis,
    drawable,
    element,
    label,
    mark,
    page_legend,
    path,
    percents,
    stretched,
    tip,
)

T = TypeVar("T")
GROUPS = {
    "trial": ("small", "g-trial"),
    "published": ("square", "g-published"),
    "baseline": ("triangle", "g-baseline"),
    "searched family": ("circle", "g-family"),
    "teacher": ("diamond", "g-teacher"),
    "winner": ("star", "g-winner"),
}  # shape and class by group, from the back of the plot to its front
MAX_MARKS = 400  # of one group or series: more would hide one another
PLOT_PIXELS = 640, 340  # width and height of a usual plot; on a phone only the winner has a name beside it
LETTER_PIXELS, LINE_PIXELS, MARK_PIXELS = 6.6, 14, 14  # width of a letter, height of a line, side of a mark
MAX_NAME_LETTERS = 26
SIDES = (("start", (8, 15)), ("end", (-8, -7)), ("start", (11, 4)), ("end", (-11, 4)), ("middle", (0, -12)))
MAX_COLOURED_OPTIONS = 6  # of a decision; all other options are grey


def front_plot(front: Front) -> str:
    """Draw quality over cost: a shape and a colour for each group, the budget as a line."""
    points = [point for point in front.points if drawable(point.cost, point.quality)]
    costs = axis(
        [point.cost for point in points] + ([front.budget] if front.budget is not None else []), spread=True
    )
    plot = Plot(
        x=costs,
        y=axis([100 * point.quality for point in points], upwards=True),
        x_name=f"{front.cost_name} in {front.unit}{', logarithmic' if costs.logarithmic else ''}",
        y_name=f"{front.quality_name} in %",
    )
    looks = group_looks(points)
    drawn = [point for group in looks for point in thinned([one for one in points if one.group == group])]
    marks = [_network(point, plot, looks, front.unit) for point in drawn]
    alt = (
        f"{front.quality_name} against {front.cost_name} of {len(points)} networks"
        + (f"; the budget is {amount(front.budget, front.unit)}" if front.budget is not None else "")
        + ". The table below holds the same figures."
    )
    names = point_names([point for point in drawn if point.group != "trial"], plot)
    parts = [*_budget(front, plot), stretched(_lines(front, points, plot)), *marks, *names]
    return plot.in_page(parts, alt=alt) + page_legend((name, *look) for name, look in reversed(looks.items()))


def group_looks(points: Sequence[Point]) -> dict[str, tuple[str, str]]:
    """Return shape and class of every group there is, in the order of drawing; unknown groups take the next colour."""
    present = dict.fromkeys(point.group for point in points)
    others = [name for name in present if name not in GROUPS]
    known = {name: look for name, look in GROUPS.items() if name in present}
    return {name: ("circle", f"s{index % PAGE_COLOURS}") for index, name in enumerate(others)} | known


def best_at_each_cost(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other one beats in quality at the same cost or less, cheapest first."""
    front: list[Point] = []
    for point in sorted(points, key=lambda item: (item.cost, -item.quality)):
        if not front or point.quality > front[-1].quality:
            front.append(point)
    return front


def point_names(points: Sequence[Point], plot: Plot) -> list[str]:
    """Return the names beside points, the last (foremost) point first.

    A name covers no mark and no other name. One that finds no free side is left out; the pointer still shows it.
    """
    places = [plot.place(point.cost, 100 * point.quality) for point in points]
    taken = [mark_box(place) for place in places]
    names = []
    for point, place in reversed(list(zip(points, places, strict=True))):
        name = point.name
        text = name if len(name) <= MAX_NAME_LETTERS else name[: MAX_NAME_LETTERS - 1] + "…"
        for anchor, shift in SIDES:
            box = name_box(place, text, anchor, shift)
            inside = box.left >= 0 and box.right <= PLOT_PIXELS[0] and box.top >= 0
            if inside and not any(box.overlaps(other) for other in taken if other != mark_box(place)):
                taken.append(box)
                kind = "major" if point.group == "winner" else "minor"
                names.append(element("g", label(place, text, anchor=anchor, shift=shift), kind=kind))
                break
    return names


class Box(NamedTuple):
    """A rectangle in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        """Tell whether the two have an area in common."""
        beside = self.right <= other.left or other.right <= self.left
        return not beside and self.bottom > other.top and other.bottom > self.top


def mark_box(place: Position) -> Box:
    """Return the area of a mark."""
    x, y, half = *_pixels(place), MARK_PIXELS / 2
    return Box(x - half, y - half, x + half, y + half)


def name_box(place: Position, text: str, anchor: str, shift: tuple[int, int]) -> Box:
    """Return the area of a name beside a mark."""
    x, y = _pixels(place)
    x, y, width = x + shift[0], y + shift[1], LETTER_PIXELS * len(text)
    left = {"start": x, "end": x - width, "middle": x - width / 2}[anchor]
    return Box(left, y - LINE_PIXELS + 3, left + width, y + 3)


def line_chart(chart: Chart) -> str:
    """Draw curves, or dots, over a common axis."""
    curves = [_finite(series) for series in chart.series]
    steps = [value for series in curves for value in series.x]
    plot = Plot(
        x=axis(steps, zero=bool(steps) and min(steps) >= 0),
        y=axis([value for series in curves for value in series.y], upwards=True),
        x_name=chart.x_name,
        y_name=chart.y_name,
    )
    lines, marks = [], []
    for index, series in enumerate(curves):
        kind = f"s{index % PAGE_COLOURS}"
        points = thinned(list(zip(series.x, series.y, strict=True)))
        if not chart.dots:
            lines.append(path([plot.place(x, y) for x, y in points], kind=f"line {kind}"))
        marks += [
            mark(
                plot.place(x, y),
                shape="small",
                kind=kind if chart.dots or len(points) < 3 else f"{kind} faint",
                content=f"{series.name}\n{chart.x_name} {x:g}: {significant(y, 4)}",
            )
            for x, y in points
        ]
    alt = f"{chart.title}: {chart.y_name} over {chart.x_name}"
    keys = page_legend(
        (series.name, "circle", f"s{index % PAGE_COLOURS}") for index, series in enumerate(curves)
    )
    return plot.in_page([stretched(lines), *marks], alt=alt, kind="low") + (keys if len(curves) > 1 else "")


def trust_plot(trust: TableTrust) -> str:
    """Draw predicted over measured milliseconds; on the diagonal they agree."""
    points = [point for point in trust.points if drawable(point.predicted_ms, point.measured_ms)]
    values = [value for point in points for value in (point.predicted_ms, point.measured_ms)]
    plot = Plot(
        x=axis(values),
        y=axis(values, upwards=True),
        x_name="measured whole, ms",
        y_name="predicted by the table, ms",
    )
    marks = [
        mark(
            plot.place(point.measured_ms, point.predicted_ms),
            shape="circle",
            kind="s6 hollow" if point.disturbed else "s0",
            content=f"{point.name}\npredicted {milliseconds(point.predicted_ms)}, measured "
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
    return plot.in_page([diagonal, *marks], alt=alt, kind="square") + page_legend(keys)


class DecisionGroup(NamedTuple):
    """Decisions that offer the same options: their mean, each of them, and the classes of their options."""

    mean: DecisionStory
    members: list[DecisionStory]
    colours: dict[str, str]

    @property
    def others(self) -> bool:
        """Whether some options are grey."""
        return len(self.colours) < len(self.mean.options)


def decision_groups(stories: Sequence[DecisionStory]) -> list[DecisionGroup]:
    """Group decisions by their options."""
    groups: dict[tuple[tuple[str, ...], tuple[float, ...]], list[DecisionStory]] = {}
    for story in stories:
        groups.setdefault((story.options, story.at), []).append(story)
    means = [(_mean(members), members) for members in groups.values()]
    return [DecisionGroup(mean, members, _option_colours(mean)) for mean, members in means if mean.at]


def strip(story: DecisionStory, colours: dict[str, str]) -> str:
    """Draw the probabilities of one decision as bands over time; options without a colour are grey."""
    if len(story.at) < 2:
        return ""
    low, high = story.at[0], story.at[-1]
    steps = [100 * (at - low) / ((high - low) or 1.0) for at in story.at]
    floor = [0.0] * len(steps)
    bands = []
    for index, option in enumerate(story.options):
        roof = [base + row[index] for base, row in zip(floor, story.shares, strict=True)]
        outline = [(x, 100 - 100 * y) for x, y in zip(steps, roof, strict=True)]
        outline += [(x, 100 - 100 * y) for x, y in zip(steps[::-1], floor[::-1], strict=True)]
        content = f"{option}: {percent(story.shares[0][index], 0)} → {percent(story.shares[-1][index], 0)}"
        band = path(outline, kind=f"band {colours.get(option, 's-other')}", closed=True)
        bands.append(element("g", tip(content), band))
        floor = roof
    winner = max(range(len(story.options)), key=lambda index: story.shares[-1][index])
    alt = f"{story.name}: ends with {story.options[winner]} at {percent(story.shares[-1][winner], 0)}"
    return f'<svg class="strip" role="img" aria-label="{escaped(alt)}">{stretched(bands)}</svg>'


def thinned(items: Sequence[T], most: int = MAX_MARKS) -> list[T]:
    """Return at most so many items, evenly chosen, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(index * (len(items) - 1) / (most - 1))] for index in range(most)]


def _network(point: Point, plot: Plot, looks: dict[str, tuple[str, str]], unit: str) -> str:
    shape, kind = looks[point.group]
    facts = [f"{percent(point.quality, 2)} at {amount(point.cost, unit)}"]
    facts += [f"95 % of runs within {amount(point.p95, unit)}"] if point.p95 is not None else []
    facts += [f"{amount(point.params)} parameters"] if point.params is not None else []
    facts += [f"{amount(point.macs)} multiply-accumulates"] if point.macs is not None else []
    content = "\n".join([f"{point.name} ({point.group})", *facts, *([point.note] if point.note else [])])
    return mark(plot.place(point.cost, 100 * point.quality), shape=shape, kind=kind, content=content)


def _budget(front: Front, plot: Plot) -> list[str]:
    if front.budget is None:
        return []
    at = plot.x.at(front.budget)
    anchor, right = ("end", -6) if at > 60 else ("start", 6)
    return [
        element(
            "rect", kind="beyond", x=percents(at), y=0, width=percents(max(0.0, 100 - at)), height="100%"
        ),
        element("line", kind="budget", x1=percents(at), x2=percents(at), y1=0, y2="100%"),
        label((at, 0), f"budget {amount(front.budget, front.unit)}", anchor=anchor, shift=(right, 12)),
    ]


def _lines(front: Front, points: Sequence[Point], plot: Plot) -> Iterator[str]:
    """Yield the stairs of the best at each cost, and the path that was asked for."""
    stairs: list[Position] = []
    for point in best_at_each_cost(points):
        x, y = plot.place(point.cost, 100 * point.quality)
        stairs += [(x, stairs[-1][1]), (x, y)] if stairs else [(x, 100.0), (x, y)]
    if stairs:
        yield path([*stairs, (100.0, stairs[-1][1])], kind="line stairs")
    by_name = {point.name: point for point in points}
    joined = [by_name[name] for name in front.path if name in by_name]
    yield path([plot.place(point.cost, 100 * point.quality) for point in joined], kind="line g-family")


def _pixels(place: Position) -> tuple[float, float]:
    return place[0] * PLOT_PIXELS[0] / 100, place[1] * PLOT_PIXELS[1] / 100


def _finite(series: Series) -> Series:
    pairs = [(x, y) for x, y in zip(series.x, series.y, strict=True) if drawable(x, y)]
    return Series(name=series.name, x=tuple(x for x, _ in pairs), y=tuple(y for _, y in pairs))


def _mean(stories: Sequence[DecisionStory]) -> DecisionStory:
    first = stories[0]
    rows = tuple(
        tuple(sum(values) / len(stories) for values in zip(*shares, strict=True))
        for shares in zip(*(story.shares for story in stories), strict=True)
    )
    name = f"mean of {len(stories)} decisions" if len(stories) > 1 else first.name
    return DecisionStory(name=name, options=first.options, at=first.at, shares=rows)


def _option_colours(mean: DecisionStory) -> dict[str, str]:
    """Give each of the options that ended most likely a class, in their own order."""
    last = dict(zip(mean.options, mean.shares[-1], strict=True)) if mean.shares else {}
    likeliest = sorted(last, key=lambda option: -last[option])[:MAX_COLOURED_OPTIONS]
    coloured = [option for option in mean.options if option in likeliest]
    return {option: f"s{index}" for index, option in enumerate(coloured)}

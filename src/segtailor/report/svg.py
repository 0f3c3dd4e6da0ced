"""The one SVG writer: elements, axes with round ticks, plots with a grid, and drawings in files of their own.

Positions in a plot are percentages of its area: the same code draws plots in a page, whose width changes, and plots in
a file, whose size is fixed. Pages bring their own colours (`templates/style.css`); files use FILE_STYLE. There are no
scripts: a `<title>` holds the text that is shown under the pointer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from segtailor.core.text import escaped
from segtailor.report.numbers import MAX_NUMBER, short

Position = tuple[float, float]  # percent of the plot, from the left and from the top

TICKS = 6  # about so many per axis
LOGARITHMIC_RATIO = 8.0  # an axis whose largest value is more than this times the smallest is logarithmic
MIN_LOGARITHMIC = 1e-12  # smaller values get no logarithmic axis
PAGE_COLOURS = 7  # classes s0 ... s6 in the style sheet of pages
COLOURS = (
    "#4477aa",
    "#ee6677",
    "#228833",
    "#ccbb44",
    "#66ccee",
    "#aa3377",
    "#ee8866",
    "#44bb99",
    "#99ddff",
    "#bbcc33",
    "#ffaabb",
    "#dddddd",
)  # of files: two schemes by Paul Tol that are safe for colour-blind readers
SHAPES = {
    "circle": "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0Z",
    "square": "M-4.5 -4.5h9v9h-9Z",
    "triangle": "M0 -6L5.5 4.5H-5.5Z",
    "diamond": "M0 -6.5L6.5 0L0 6.5L-6.5 0Z",
    "star": "M0 -9L2.6 -3.2L9 -2.7L4.1 1.5L5.6 7.8L0 4.4L-5.6 7.8L-4.1 1.5L-9 -2.7L-2.6 -3.2Z",
    "small": "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0Z",
}
STYLE = """
  text { font-family: system-ui, sans-serif } .tick, .label text { font-size: 11px }
  .tick.x { text-anchor: middle } .tick.y { text-anchor: end }
  .line { fill: none; stroke-width: 2px; vector-effect: non-scaling-stroke } .guide { stroke-dasharray: 4 4 }
  .page { fill: #ffffff } .ink { fill: #1b1f24 } .soft, .tick, .label text { fill: #5b6570 } .band { fill: #f3f5f7 }
  .grid { stroke: #e3e7eb } .axis { fill: none; stroke: #9aa4ae } .guide { stroke: #9aa4ae }
  .edge { fill: none; stroke: #9aa4ae; stroke-width: 1.1 } .aux { opacity: 0.45 }
  .dot { fill: #ffffff; stroke: #5b6570; stroke-width: 1.2 }
  .trial { fill: #9aa4ae; opacity: 0.7 } .chosen { fill: #aa3377 } .line.chosen { fill: none; stroke: #aa3377 }
  @media (prefers-color-scheme: dark) {
    .page { fill: #14171a } .ink { fill: #e8ebee } .soft, .tick, .label text { fill: #9aa4ae } .band { fill: #1d2226 }
    .grid { stroke: #2a3036 } .axis, .guide, .edge { stroke: #59636d } .dot { fill: #14171a; stroke: #9aa4ae }
    .trial { fill: #77818b } .chosen { fill: #ee88bb } .line.chosen { fill: none; stroke: #ee88bb }
  }
"""
FILE_STYLE = STYLE + "".join(
    f"  .s{index} {{ fill: {colour} }} .line.s{index} {{ fill: none; stroke: {colour} }}\n"
    for index, colour in enumerate(COLOURS)
)
LEFT_PIXELS, RIGHT_PIXELS, TOP_PIXELS, BOTTOM_PIXELS = 72, 28, 66, 56  # around the plot of a file
SUBTITLE_PIXELS = 20  # more room above the plot where there is a subtitle as well as a legend
SLANTED_PIXELS = 28  # more room below it for categories that are written at an angle
MAX_LEVEL_LETTERS = 4  # a category with more letters is written at an angle
LETTER_PIXELS = 7  # about the width of one in a legend
LEGEND_LEFT_PIXELS, ENTRY_PIXELS, LEGEND_ROW_PIXELS = (
    21,
    30,
    20,
)  # where it begins, an entry without name, a row


def element(name: str, *children: str, kind: str = "", **attributes: object) -> str:
    """Return one element with children that are SVG already.

    `kind` is its class. An attribute's `_` stands for `-`; its value is escaped, or left out where it is None.
    """
    given = {"class": kind or None} | {key.replace("_", "-"): value for key, value in attributes.items()}
    written = "".join(f' {key}="{_written(value)}"' for key, value in given.items() if value is not None)
    return f"<{name}{written}>{''.join(children)}</{name}>" if children else f"<{name}{written}/>"


def text(
    x: float, y: float, content: str, *, kind: str = "soft", size: int = 11, **attributes: object
) -> str:
    """Return a line of text that starts at a point, in pixels."""
    return element("text", escaped(content), kind=kind, x=x, y=y, font_size=size, **attributes)


def tip(content: str) -> str:
    """Return what the pointer shows over the element that this is a child of."""
    return element("title", escaped(content))


@dataclass(frozen=True, kw_only=True)
class Axis:
    """Maps values to positions; `start` may be larger than `end`."""

    low: float
    high: float
    start: float = 0.0
    end: float = 100.0
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """Return the position of a value."""
        low, high, here = (
            math.log(item) if self.logarithmic else item for item in (self.low, self.high, value)
        )
        return self.start + (self.end - self.start) * (here - low) / (high - low)

    def ticks(self) -> list[float]:
        """Return round values inside the axis."""
        if self.logarithmic:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            values = [digit * 10.0**decade for decade in decades for digit in (1, 2, 5)]
        else:
            step = _round_step((self.high - self.low) / TICKS)
            first = math.ceil(self.low / step - 1e-9)
            values = [index * step for index in range(first, math.floor(self.high / step + 1e-9) + 1)]
        return [
            value for value in values if self.low <= value * (1 + 1e-9) and value <= self.high * (1 + 1e-9)
        ]


def axis(values: Sequence[float], *, upwards: bool = False, zero: bool = False, spread: bool = False) -> Axis:
    """Return an axis around values: to the right, or `upwards`; from `zero`; logarithmic where `spread` allows it."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    logarithmic = spread and low > MIN_LOGARITHMIC and high / low > LOGARITHMIC_RATIO
    if logarithmic:
        low, high = low / 1.15, high * 1.15
    else:
        low, high = _padded(0.0 if zero else low, high)
        low = 0.0 if zero else low
    start, end = (100.0, 0.0) if upwards else (0.0, 100.0)
    return Axis(low=low, high=high, start=start, end=end, logarithmic=logarithmic)


def drawable(*values: float) -> bool:
    """Tell whether all values are numbers that an axis can hold."""
    return all(abs(value) <= MAX_NUMBER for value in values)


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Two axes with their names. Where there are `categories`, x counts them from 0 and they stand under the axis."""

    x: Axis
    y: Axis
    x_name: str
    y_name: str
    categories: tuple[str, ...] = ()

    def place(self, x: float, y: float) -> Position:
        """Return the position of a point."""
        return self.x.at(x), self.y.at(y)

    def in_page(self, parts: Iterable[str], *, alt: str, kind: str = "") -> str:
        """Return HTML: the plot with these parts on it, in this order. It takes its size from the page."""
        return "\n".join(
            [
                f'<div class="plot {kind}"><div class="y-name">{escaped(self.y_name)}</div>',
                f'<svg role="img" aria-label="{escaped(alt)}">',
                *self._grid(),
                *parts,
                f'</svg><div class="x-name">{escaped(self.x_name)}</div></div>',
            ]
        )

    def in_file(
        self,
        parts: Iterable[str],
        *,
        title: str,
        subtitle: str = "",
        legend: Sequence[tuple[str, str, str]] = (),
        width: int = 760,
        height: int = 460,
    ) -> str:
        """Return the content of an SVG file: title, legend of (name, shape, class), and the plot with these parts."""
        rows = _legend_rows(legend, width=width)
        above = TOP_PIXELS + (SUBTITLE_PIXELS if subtitle and legend else 0)
        top = above + LEGEND_ROW_PIXELS * max(0, len(rows) - 1)
        height += top - above
        right = width - RIGHT_PIXELS
        bottom = height - BOTTOM_PIXELS - (SLANTED_PIXELS if self._slanted else 0)
        area = element(
            "svg",
            *self._grid(),
            *parts,
            x=LEFT_PIXELS,
            y=top,
            width=right - LEFT_PIXELS,
            height=bottom - top,
            overflow="visible",
        )
        middle = (top + bottom) / 2
        names = [
            text((LEFT_PIXELS + right) / 2, height - 14, self.x_name, size=12, text_anchor="middle"),
            text(
                20, middle, self.y_name, size=12, text_anchor="middle", transform=f"rotate(-90 20 {middle:g})"
            ),
        ]
        frame = element("path", kind="axis", d=f"M{LEFT_PIXELS} {top}V{bottom}H{right}")
        entries = [
            part
            for number, row in enumerate(rows)
            for part in _file_legend(row, y=above - 23 + LEGEND_ROW_PIXELS * number)
        ]
        return svg_file(
            [*entries, area, frame, *names], title=title, subtitle=subtitle, width=width, height=height
        )

    @property
    def _slanted(self) -> bool:
        """Whether categories are written at an angle, as they are too long to stand side by side."""
        return any(len(name) > MAX_LEVEL_LETTERS for name in self.categories)

    def _grid(self) -> list[str]:
        parts = []
        for value in self.y.ticks():
            at = percents(self.y.at(value))
            parts.append(element("line", kind="grid", x1=0, x2="100%", y1=at, y2=at))
            parts.append(element("text", short(value), kind="tick y", x=-8, y=at, dy=".32em"))
        for value in () if self.categories else self.x.ticks():
            at = percents(self.x.at(value))
            parts.append(element("line", kind="grid", y1=0, y2="100%", x1=at, x2=at))
            parts.append(element("text", short(value), kind="tick x", x=at, y="100%", dy="1.5em"))
        for index, name in enumerate(self.categories):
            parts.append(
                _label(
                    (self.x.at(index), 100.0),
                    name,
                    shift=(0, 16),
                    text_anchor="end",
                    transform="rotate(-35 0 16)",
                )
                if self._slanted
                else label((self.x.at(index), 100.0), name, shift=(0, 16), anchor="middle")
            )
        return parts


def svg_file(
    parts: Iterable[str], *, title: str, width: int, height: int, subtitle: str = "", style: str = FILE_STYLE
) -> str:
    """Return the content of an SVG file, for light and dark surroundings: background, heading, then the parts."""
    root = element(
        "svg",
        "\n",
        f"<style>{style}</style>\n",
        element("rect", kind="page", width="100%", height="100%"),
        text(16, 26, title, kind="ink", size=17, font_weight=600),
        text(16, 46, subtitle, size=12) if subtitle else "",
        "\n",
        "\n".join(parts),
        "\n",
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
        aria_label=title,
    )
    return root + "\n"


def mark(place: Position, *, shape: str, kind: str, content: str) -> str:
    """Return a shape whose size does not depend on that of the plot; `content` is shown under the pointer."""
    x, y = place
    drawn = element("path", d=SHAPES[shape])
    return element(
        "svg", tip(content), drawn, kind=f"mark {kind}", x=percents(x), y=percents(y), overflow="visible"
    )


def label(place: Position, content: str, *, anchor: str = "start", shift: tuple[int, int] = (0, 0)) -> str:
    """Return text beside a position, moved by pixels to the right and down."""
    return _label(place, content, shift=shift, text_anchor=anchor)


def stretched(parts: Iterable[str]) -> str:
    """Return paths, whose points are positions, stretched over the plot; the width of lines stays the same."""
    return element(
        "svg",
        "".join(parts),
        kind="lines",
        viewBox="0 0 100 100",
        preserveAspectRatio="none",
        width="100%",
        height="100%",
    )


def path(places: Sequence[Position], *, kind: str, closed: bool = False) -> str:
    """Return a line through positions, or the area inside them, for `stretched`."""
    if not places:
        return ""
    points = "L".join(f"{x:.2f} {y:.2f}" for x, y in places)
    return element("path", kind=kind, d=f"M{points}{'Z' if closed else ''}")


def percents(value: float) -> str:
    """Write a position or a length as a percentage of the plot."""
    return f"{value:.2f}%"


def page_legend(entries: Iterable[tuple[str, str, str]]) -> str:
    """Return a legend of (name, shape, class) as HTML."""
    rows = "".join(
        f'<li><svg class="mark {kind}" width="18" height="18" viewBox="-9 -9 18 18" aria-hidden="true">'
        f'<path d="{SHAPES[shape]}"/></svg>{escaped(name)}</li>'
        for name, shape, kind in entries
    )
    return f'<ul class="legend">{rows}</ul>'


def _legend_rows(entries: Sequence[tuple[str, str, str]], *, width: int) -> list[list[tuple[str, str, str]]]:
    """Divide the entries of a legend into rows that are not wider than the file."""
    rows: list[list[tuple[str, str, str]]] = []
    room = 0
    for entry in entries:
        needed = ENTRY_PIXELS + LETTER_PIXELS * len(entry[0])
        if not rows or needed > room:
            rows.append([])
            room = width - LEGEND_LEFT_PIXELS
        rows[-1].append(entry)
        room -= needed
    return rows


def _file_legend(entries: Sequence[tuple[str, str, str]], *, y: int) -> list[str]:
    parts, x = [], LEGEND_LEFT_PIXELS
    for name, shape, kind in entries:
        parts.append(element("path", kind=kind, d=SHAPES[shape], transform=f"translate({x} {y})"))
        parts.append(text(x + 9, y + 4, name, size=12))
        x += ENTRY_PIXELS + LETTER_PIXELS * len(name)
    return parts


def _label(place: Position, content: str, *, shift: tuple[int, int], **attributes: object) -> str:
    (x, y), (right, down) = place, shift
    inner = element("text", escaped(content), kind="", x=right, y=down, **attributes)
    return element("svg", inner, kind="label", x=percents(x), y=percents(y), overflow="visible")


def _written(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else escaped(str(value))


def _padded(low: float, high: float) -> tuple[float, float]:
    """Return a range around values that is never empty, and starts at 0 rather than below it."""
    space = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    return (max(0.0, low - space) if low >= 0 else low - space), high + space


def _round_step(raw: float) -> float:
    """Return 1, 2 or 5 times a power of ten, at least `raw`."""
    power = 10.0 ** math.floor(math.log10(raw))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= raw * (1 - 1e-9))

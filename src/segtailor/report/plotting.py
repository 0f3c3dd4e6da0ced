"""Plots that fit any width: places are percentages of the plot, text keeps its size. Inline SVG without a script.

Colours come from the page's style sheet (`templates/style.css`); a `<title>` holds what the pointer shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from segtailor.core.text import escaped
from segtailor.report.pareto import LOGARITHMIC, Axis, padded, short

LARGEST = 1e24  # values beyond are mistakes, and would break the arithmetic of axes
SMALLEST = 1e-12  # on a logarithmic axis
SERIES = 7  # colours of series in the style sheet: s0 ... s6
SHAPES = {
    "circle": "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0Z",
    "square": "M-4.5 -4.5h9v9h-9Z",
    "triangle": "M0 -6L5.5 4.5H-5.5Z",
    "diamond": "M0 -6.5L6.5 0L0 6.5L-6.5 0Z",
    "star": "M0 -9L2.6 -3.2L9 -2.7L4.1 1.5L5.6 7.8L0 4.4L-5.6 7.8L-4.1 1.5L-9 -2.7L-2.6 -3.2Z",
    "small": "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0Z",
}


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Axes in percent of the plot, with their names."""

    x: Axis
    y: Axis
    x_name: str
    y_name: str

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Return a point in percent from the left and from the top."""
        return self.x.at(x), self.y.at(y)

    def drawn(self, parts: Iterable[str], *, alt: str, kind: str = "") -> str:
        """Return the plot with these parts on it, in this order."""
        return "\n".join(
            [
                f'<div class="plot {kind}"><div class="y-name">{escaped(self.y_name)}</div>',
                f'<svg role="img" aria-label="{escaped(alt)}">',
                *self._grid(),
                *parts,
                f'</svg><div class="x-name">{escaped(self.x_name)}</div></div>',
            ]
        )

    def _grid(self) -> list[str]:
        rows = []
        for value in self.y.ticks():
            at = self.y.at(value)
            rows.append(f'<line class="grid" x1="0" x2="100%" y1="{at:.2f}%" y2="{at:.2f}%"/>')
            rows.append(f'<text class="tick y" x="-8" y="{at:.2f}%" dy=".32em">{short(value)}</text>')
        for value in self.x.ticks():
            at = self.x.at(value)
            rows.append(f'<line class="grid" y1="0" y2="100%" x1="{at:.2f}%" x2="{at:.2f}%"/>')
            rows.append(f'<text class="tick x" x="{at:.2f}%" y="100%" dy="1.5em">{short(value)}</text>')
        return rows


def drawable(*values: float) -> bool:
    """Tell whether all values are numbers that an axis can hold."""
    return all(abs(value) <= LARGEST for value in values)


def axis(values: Sequence[float], *, upwards: bool = False, zero: bool = False, spread: bool = False) -> Axis:
    """Return an axis around values: to the right, or `upwards`; from `zero`; logarithmic where `spread` is allowed."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    logarithmic = spread and low > SMALLEST and high / low > LOGARITHMIC
    if logarithmic:
        low, high = low / 1.15, high * 1.15
    else:
        low, high = padded(0.0 if zero else low, high)
        low = 0.0 if zero else low
    start, end = (100.0, 0.0) if upwards else (0.0, 100.0)
    return Axis(low=low, high=high, start=start, end=end, logarithmic=logarithmic)


def mark(place: tuple[float, float], *, shape: str, kind: str, tip: str) -> str:
    """Return a shape whose size does not depend on that of the plot."""
    x, y = place
    return (
        f'<svg class="mark {kind}" x="{x:.2f}%" y="{y:.2f}%" overflow="visible">'
        f'<title>{escaped(tip)}</title><path d="{SHAPES[shape]}"/></svg>'
    )


def label(
    place: tuple[float, float], text: str, *, anchor: str = "start", shift: tuple[int, int] = (0, 0)
) -> str:
    """Return text beside a place, moved by pixels."""
    (x, y), (right, down) = place, shift
    return (
        f'<svg class="label" x="{x:.2f}%" y="{y:.2f}%" overflow="visible">'
        f'<text x="{right}" y="{down}" text-anchor="{anchor}">{escaped(text)}</text></svg>'
    )


def stretched(parts: Iterable[str]) -> str:
    """Return paths given in percent, stretched over the plot; lines keep their width."""
    return (
        '<svg class="lines" viewBox="0 0 100 100" preserveAspectRatio="none" width="100%" height="100%">'
        + "".join(parts)
        + "</svg>"
    )


def path(places: Sequence[tuple[float, float]], *, kind: str, closed: bool = False) -> str:
    """Return a line through places, or the area inside them, for `stretched`."""
    if not places:
        return ""
    points = "L".join(f"{x:.2f} {y:.2f}" for x, y in places)
    return f'<path class="{kind}" d="M{points}{"Z" if closed else ""}"/>'


def legend(entries: Iterable[tuple[str, str, str]]) -> str:
    """Return a legend of (name, shape, kind)."""
    rows = "".join(
        f'<li><svg class="mark {kind}" width="18" height="18" viewBox="-9 -9 18 18" aria-hidden="true">'
        f'<path d="{SHAPES[shape]}"/></svg>{escaped(name)}</li>'
        for name, shape, kind in entries
    )
    return f'<ul class="legend">{rows}</ul>'

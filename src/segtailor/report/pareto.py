"""Quality against cost as SVG: every trial a dot, the front or family a line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from segtailor.core.text import escaped

WIDTH, HEIGHT = 760, 460  # pixels
LEFT, RIGHT, TOP, BOTTOM = 72, 28, 66, 56
TICKS = 6  # about so many per axis
LOGARITHMIC = 8.0  # costs that span more than this factor get a logarithmic axis
PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
STYLE = """
  .page { fill: #ffffff } .ink { fill: #1b1f24 } .soft { fill: #5b6570 } .grid { stroke: #e3e7eb }
  .axis { stroke: #9aa4ae } .trial { fill: #9aa4ae; opacity: 0.7 } .chosen { fill: #aa3377 }
  .path { fill: none; stroke: #aa3377; stroke-width: 1.8 } text { font-family: system-ui, sans-serif }
  @media (prefers-color-scheme: dark) {
    .page { fill: #14171a } .ink { fill: #e8ebee } .soft { fill: #9aa4ae } .grid { stroke: #2a3036 }
    .axis { stroke: #59636d } .trial { fill: #77818b } .chosen { fill: #ee88bb } .path { stroke: #ee88bb }
  }
"""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One judged network; `label` appears under the pointer, `name` beside the dot."""

    id: int
    cost: float
    quality: float
    label: str = ""
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """From values to pixels; `start` may lie right of or below `end`."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        low, high, here = (self._flat(item) for item in (self.low, self.high, value))
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

    def _flat(self, value: float) -> float:
        return math.log(value) if self.logarithmic else value


def draw_front(
    marks: Sequence[Mark],
    *,
    title: str,
    unit: str,
    path: Sequence[int] = (),
    path_name: str = "front",
    measure: str = "mIoU",
) -> str:
    """Return an SVG document; `path` holds the ids of the marks to join, `measure` is what the quality is."""
    x, y = _axes(marks)
    by_id = {mark.id: mark for mark in marks}
    chosen = [by_id[number] for number in path if number in by_id]
    return (
        "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
                f'height="{HEIGHT}" role="img" aria-label="{escaped(title)}">',
                f"<style>{STYLE}</style>",
                '<rect class="page" width="100%" height="100%"/>',
                f'<text class="ink" x="16" y="26" font-size="17" font-weight="600">{escaped(title)}</text>',
                *_legend(len(marks), len(chosen), path_name),
                *_grid(x, y, unit, measure),
                *_dots([mark for mark in marks if mark not in chosen], x, y, kind="trial"),
                *_line(chosen, x, y),
                *_dots(chosen, x, y, kind="chosen"),
                "</svg>",
            ]
        )
        + "\n"
    )


def _axes(marks: Sequence[Mark]) -> tuple[Axis, Axis]:
    costs = [mark.cost for mark in marks] or [1.0]
    qualities = [100 * mark.quality for mark in marks] or [0.0]
    logarithmic = min(costs) > 0 and max(costs) / min(costs) > LOGARITHMIC
    if logarithmic:
        low, high = min(costs) / 1.15, max(costs) * 1.15
    else:
        low, high = padded(min(costs), max(costs))
    x = Axis(low=low, high=high, start=LEFT, end=WIDTH - RIGHT, logarithmic=logarithmic)
    bottom, top = padded(min(qualities), max(qualities))
    return x, Axis(low=bottom, high=top, start=HEIGHT - BOTTOM, end=TOP)


def padded(low: float, high: float) -> tuple[float, float]:
    """Return a range around values that is never empty, and starts at 0 rather than below it."""
    space = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    return (max(0.0, low - space) if low >= 0 else low - space), high + space


def _grid(x: Axis, y: Axis, unit: str, measure: str) -> list[str]:
    parts = []
    for value in y.ticks():
        at = y.at(value)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}"/>')
        parts.append(_text(LEFT - 8, at + 4, f"{value:.6g}", anchor="end"))
    for value in x.ticks():
        at = x.at(value)
        parts.append(f'<line class="grid" x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(_text(at, HEIGHT - BOTTOM + 18, short(value)))
    parts.append(f'<path class="axis" fill="none" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>')
    scale = ", logarithmic" if x.logarithmic else ""
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, f"cost in {unit}{scale}", size=12))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    turned = f'transform="rotate(-90 20 {middle:.0f})"'
    label = f"{measure} in % on the judging half"
    parts.append(
        f'<text class="soft" x="20" y="{middle:.0f}" font-size="12" text-anchor="middle" {turned}>{label}</text>'
    )
    return parts


def _legend(trials: int, chosen: int, path_name: str) -> list[str]:
    second = 24 + 7 * len(f"{trials} trials")
    return [
        f'<circle class="trial" cx="21" cy="43" r="4"/>{_text(30, 47, f"{trials} trials", anchor="start", size=12)}',
        f'<circle class="chosen" cx="{second + 21}" cy="43" r="4.5"/>'
        + _text(second + 30, 47, f"{path_name} of {chosen}", anchor="start", size=12),
    ]


def _dots(marks: Sequence[Mark], x: Axis, y: Axis, *, kind: str) -> list[str]:
    radius = 5 if kind == "chosen" else 3.5
    parts = []
    for mark in marks:
        at, height = x.at(mark.cost), y.at(100 * mark.quality)
        hint = escaped(f"{mark.label or mark.id}: {100 * mark.quality:.2f} % at {short(mark.cost)}")
        parts.append(
            f'<circle class="{kind}" cx="{at:.1f}" cy="{height:.1f}" r="{radius}"><title>{hint}</title></circle>'
        )
        if mark.name:
            left = at > WIDTH - RIGHT - 90  # no room for the name to the right
            parts.append(
                _text(at - 9 if left else at + 9, height + 4, mark.name, anchor="end" if left else "start")
            )
    return parts


def _line(marks: Sequence[Mark], x: Axis, y: Axis) -> list[str]:
    if len(marks) < 2:
        return []
    points = "L".join(f"{x.at(mark.cost):.1f} {y.at(100 * mark.quality):.1f}" for mark in marks)
    return [f'<path class="path" d="M{points}"/>']


def short(value: float) -> str:
    """Write a number with a prefix, e.g. 12.5M."""
    for size, prefix in PREFIXES:
        if abs(value) >= size:
            return f"{value / size:.4g}{prefix}"
    return f"{value:.4g}"


def _round_step(raw: float) -> float:
    """Return 1, 2 or 5 times a power of ten, at least `raw`."""
    power = 10.0 ** math.floor(math.log10(raw))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= raw * (1 - 1e-9))


def _text(x: float, y: float, text: str, *, anchor: str = "middle", size: int = 11) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"'
    return f'<text class="soft" {place}>{escaped(text)}</text>'

"""Bars and lines as SVG, for studies with a few dozen values. Light and dark, no scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from segtailor.core.text import escaped

COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")
STYLE = """
  .page { fill: #ffffff } .ink { fill: #1b1f24 } .soft { fill: #5b6570 } .line { stroke: #c5ccd3; fill: none }
  text { font-family: system-ui, sans-serif }
  @media (prefers-color-scheme: dark) {
    .page { fill: #14171a } .ink { fill: #e8ebee } .soft { fill: #9aa4ae } .line { stroke: #3b434b }
  }
"""
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 360, 64, 84, 64


class Value(NamedTuple):
    """One bar or point: series, place on the axis, height, and what to say about it."""

    series: str
    label: str
    value: float
    hint: str = ""


def draw_chart(document: Mapping[str, Any]) -> str:
    """Draw a chart given as plain data: title, subtitle, unit, lines, and `values` as [series, label, value]."""
    values = [
        Value(str(row[0]), str(row[1]), float(row[2]), f"{row[0]} {row[1]}: {row[2]:.4g}")
        for row in document["values"]
    ]
    return chart(
        values,
        title=document["title"],
        subtitle=document["subtitle"],
        unit=document["unit"],
        lines=document["lines"],
    )


def chart(values: Sequence[Value], *, title: str, subtitle: str, unit: str, lines: bool = False) -> str:
    """Draw values as bars grouped by label, or as one line per series."""
    labels = list(dict.fromkeys(value.label for value in values))
    series = list(dict.fromkeys(value.series for value in values))
    top = 1.08 * max((value.value for value in values), default=0.0) or 1.0
    marks = _lines(values, labels, series, top) if lines else _bars(values, labels, series, top)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
            f'height="{HEIGHT}" role="img" aria-label="{escaped(title)}">',
            f'<style>{STYLE}</style><rect class="page" width="100%" height="100%"/>',
            f'<text class="ink" x="16" y="24" font-size="15" font-weight="600">{escaped(title)}</text>',
            f'<text class="soft" x="16" y="42" font-size="11">{escaped(subtitle)}</text>',
            *_axis(labels, top, unit),
            *marks,
            *(_legend(series) if len(series) > 1 else []),
            "</svg>\n",
        ]
    )


def _x(index: float, count: int) -> float:
    return LEFT + (index + 0.5) * (WIDTH - LEFT - 24) / count


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - value / top * (HEIGHT - BOTTOM - TOP)


def _axis(labels: Sequence[str], top: float, unit: str) -> list[str]:
    parts = []
    for step in range(5):
        value = top * step / 4
        y = _y(value, top)
        parts.append(f'<path class="line" d="M{LEFT} {y:.1f}H{WIDTH - 20}"/>')
        parts.append(
            f'<text class="soft" x="{LEFT - 6}" y="{y + 4:.1f}" font-size="11" text-anchor="end">{value:.3g}</text>'
        )
    parts.append(
        f'<text class="soft" x="{LEFT - 6}" y="{TOP - 8}" font-size="11" text-anchor="end">{unit}</text>'
    )
    for index, label in enumerate(labels):
        x, y = _x(index, len(labels)), HEIGHT - BOTTOM + 16
        turn = (
            f' transform="rotate(-35 {x:.1f} {y})" text-anchor="end"'
            if len(label) > 4
            else ' text-anchor="middle"'
        )
        parts.append(f'<text class="ink" x="{x:.1f}" y="{y}" font-size="11"{turn}>{escaped(label)}</text>')
    return parts


def _bars(values: Sequence[Value], labels: list[str], series: list[str], top: float) -> list[str]:
    slot = (WIDTH - LEFT - 24) / len(labels)
    width = min(48.0, 0.8 * slot / len(series))
    parts = []
    for value in values:
        centre = _x(labels.index(value.label), len(labels))
        x = centre + (series.index(value.series) - len(series) / 2) * width
        y = _y(value.value, top)
        colour = COLOURS[series.index(value.series) % len(COLOURS)]
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(1.0, width - 2):.1f}" height="{HEIGHT - BOTTOM - y:.1f}" '
            f'rx="2" fill="{colour}"><title>{escaped(value.hint)}</title></rect>'
        )
    return parts


def _lines(values: Sequence[Value], labels: list[str], series: list[str], top: float) -> list[str]:
    parts = []
    for index, name in enumerate(series):
        colour = COLOURS[index % len(COLOURS)]
        points = [
            (_x(labels.index(value.label), len(labels)), _y(value.value, top), value.hint)
            for value in values
            if value.series == name
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"><title>{escaped(hint)}</title></circle>'
            for x, y, hint in points
        ]
    return parts


def _legend(series: Sequence[str]) -> list[str]:
    parts, x = [], LEFT
    for index, name in enumerate(series):
        parts.append(
            f'<rect x="{x}" y="{HEIGHT - 22}" width="14" height="11" rx="2" fill="{COLOURS[index % 6]}"/>'
        )
        parts.append(
            f'<text class="ink" x="{x + 20}" y="{HEIGHT - 12}" font-size="12">{escaped(name)}</text>'
        )
        x += 36 + 7 * len(name)
    return parts

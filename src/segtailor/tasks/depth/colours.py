"""Depth as colours: near is light, far is dark, gaps are black; a bar at the right says what the colours mean."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

GAP = (0, 0, 0)
# Anchors from far to near, equally spaced: dark violet, red, orange, pale yellow. Lightness grows all the way, so that
# the order can be read without colour vision.
ANCHORS = (
    (24, 15, 62),
    (87, 16, 110),
    (148, 38, 103),
    (203, 65, 73),
    (240, 112, 32),
    (251, 173, 40),
    (252, 242, 170),
)
BAR, EDGE, TICK = 12, 4, 4  # pixels: width of the bar, space around it, length of a tick
TEXT = (235, 235, 235)
BACK = (24, 24, 28)
SMALLEST_BAR = 40  # rows that a bar with labels needs


@cache
def table() -> NDArray[np.uint8]:
    """Return 256 colours from far to near."""
    places = np.linspace(0, 1, len(ANCHORS))
    steps = np.linspace(0, 1, 256)
    columns = [np.interp(steps, places, [anchor[part] for anchor in ANCHORS]) for part in range(3)]
    return np.stack(columns, axis=1).round().astype(np.uint8)


def shown_span(depth: NDArray[np.float32]) -> tuple[float, float]:
    """Return the nearest and farthest depth that a picture shows: its 2nd and 98th percentile, a little apart."""
    known = depth[np.isfinite(depth) & (depth > 0)]
    if not known.size:
        return 0.5, 1.0
    near, far = (float(value) for value in np.percentile(known, (2, 98)))
    return near, max(far, near * 1.05)


def colourise(depth: NDArray[np.float32], span: tuple[float, float]) -> NDArray[np.uint8]:
    """Return depth (height, width) as RGB (height, width, 3), on a logarithmic scale: equal factors, equal steps."""
    near, far = span
    known = np.isfinite(depth) & (depth > 0)
    place = np.log(np.where(known, depth, far) / far) / np.log(near / far)
    painted: NDArray[np.uint8] = table()[np.rint(255 * np.clip(place, 0, 1)).astype(np.int64)]
    painted[~known] = GAP
    return painted


def with_scale(picture: NDArray[np.uint8], span: tuple[float, float]) -> Image.Image:
    """Lay a bar that names depths in metres over the right edge of a picture; one too small for it stays as it is."""
    (height, width), (near, far) = picture.shape[:2], span
    whole = Image.fromarray(picture)
    draw = ImageDraw.Draw(whole)
    marks = [(value, f"{value:g} m") for value in scale_ticks(near, far)]
    room = 2 * EDGE + BAR + TICK + max(math.ceil(draw.textlength(text)) for _, text in marks)
    if height < SMALLEST_BAR or width < 3 * room:
        return whole
    left, top, bottom = width - room, 2 * EDGE, height - 2 * EDGE
    draw.rectangle([(left, 0), (width, height)], fill=BACK)
    steps = np.linspace(255, 0, bottom - top).round().astype(np.int64)
    bar = np.repeat(table()[steps][:, None], BAR, axis=1)
    whole.paste(Image.fromarray(bar), (left + EDGE, top))
    edge = left + EDGE + BAR
    for value, text in marks:
        row = top + (bottom - top - 1) * math.log(value / near) / math.log(far / near)
        draw.line([(edge, row), (edge + TICK, row)], fill=TEXT)
        draw.text((edge + TICK + 1, row - 5), text, fill=TEXT)
    return whole


def scale_ticks(near: float, far: float, most: int = 6) -> list[float]:
    """Return round depths between two, about equally far apart in factors, at least the two ends rounded."""
    powers = range(int(np.floor(np.log10(near))) - 1, int(np.ceil(np.log10(far))) + 1)
    for digits in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        values = [digit * 10.0**power for power in powers for digit in digits]
        inside = [float(f"{value:.3g}") for value in values if near <= value <= far]
        if 2 <= len(inside) <= most:
            return inside
    return [float(f"{near:.3g}"), float(f"{far:.3g}")]

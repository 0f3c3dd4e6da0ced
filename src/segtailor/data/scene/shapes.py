"""Plane figures as masks over a patch, never thinner than a pixel so that far poles stay whole."""

from __future__ import annotations

import numpy as np

from segtailor.data.scene.canvas import Floats, Mask, Patch


def thick(half: float, patch: Patch) -> float | Floats:
    """Return a half width of at least half a pixel."""
    return np.maximum(half, 0.55 * patch.pixel)


def bar(u: Floats, v: Floats, span: tuple[float, float], half: float | Floats) -> Mask:
    """Upright bar around u = 0 from span[0] to span[1]."""
    return (np.abs(u) < half) & (v >= span[0]) & (v <= span[1])


def disc(u: Floats, v: Floats, radius: float | Floats, squeeze: float = 1.0) -> Mask:
    """Disc around the origin, `squeeze` times as wide as high."""
    return np.asarray((u / squeeze) ** 2 + v**2 < np.square(radius))


def ring(u: Floats, v: Floats, radius: float, half: float | Floats, squeeze: float = 1.0) -> Mask:
    """Ring around the origin, `squeeze` times as wide as high."""
    return np.asarray(np.abs(np.sqrt((u / squeeze) ** 2 + v**2) - radius) < half)


def rod(
    u: Floats, v: Floats, ends: tuple[tuple[float, float], tuple[float, float]], half: float | Floats
) -> Mask:
    """Straight rod between two points."""
    (u0, v0), (u1, v1) = ends
    du, dv = u1 - u0, v1 - v0
    u, v = u - u0, v - v0
    square = max(du * du + dv * dv, 1e-9)
    t = np.minimum(np.maximum(u * (du / square) + v * (dv / square), 0), 1)
    across, up = u - t * du, v - t * dv
    return np.asarray(across * across + up * up < half * half)


def taper(u: Floats, v: Floats, low: tuple[float, float], high: tuple[float, float]) -> Mask:
    """Symmetric trapezoid; `low` and `high` are (v, half width)."""
    t = (v - low[0]) / max(high[0] - low[0], 1e-6)
    return np.asarray((t >= 0) & (t <= 1) & (np.abs(u) < low[1] + (high[1] - low[1]) * t))

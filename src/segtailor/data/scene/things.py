"""Street furniture and traffic: trees, poles, signs, cars, people, bicycles; one function each.

Objects are made of plane shapes, masks over a patch that are never thinner than a pixel, so that far poles stay whole.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from segtailor.data.scene.canvas import (
    BICYCLE,
    CAR,
    PERSON,
    POLE,
    SIGN,
    TREE,
    Canvas,
    Floats,
    Light,
    Mask,
    Patch,
    grey,
    paint_colour,
    texture,
    vivid,
)
from segtailor.data.scene.street import shadow_blob

DARK = np.array((0.05, 0.05, 0.06), np.float32)


def paint_tree(canvas: Canvas, at: tuple[float, float], light: Light, rng: Generator) -> None:
    """Paint a tree or a shrub: a ragged crown with holes, on a trunk."""
    x, z = at
    shrub = rng.random() < 0.2
    top = rng.uniform(0.8, 2.0) if shrub else rng.uniform(4, 10)
    radius = rng.uniform(0.6, 1.6) if shrub else rng.uniform(1.3, 3.2)
    crown = (top * 0.5, top * 0.55) if shrub else (top * 0.68, top * 0.38)  # centre and half height
    shadow_blob(canvas, (x - light.side * top * 0.3, z), (radius * 1.3, radius), 0.4 * light.sun + 0.1)
    patch = canvas.camera.facing((x - radius * 1.3, x + radius * 1.3), (0, top * 1.15), z)
    if patch is None:
        return
    u, v = patch.along - x, patch.height
    if not shrub:
        bark = grey(rng, 0.12, 0.4, 0.04) * light.tint
        canvas.paint(patch, bar(u, v, (0, crown[0]), thick(rng.uniform(0.08, 0.2), patch)), bark, TREE)
    shift = int(rng.integers(256))
    ragged, leaves = texture(u, v, scale=5.0, shift=shift), texture(u, v, scale=23.0, shift=shift + 31)
    r = (u / radius) ** 2 + ((v - crown[0]) / crown[1]) ** 2
    outline = r + 0.22 * np.maximum(ragged, -2) + 0.12 * np.maximum(leaves, -2)  # stays within the patch
    mask = (outline < 0.85) & (leaves < rng.uniform(1.0, 2.5)) & (v > 0.02)
    sunny = 0.9 + 0.25 * np.clip((v - crown[0]) / crown[1] + 0.6 * light.side * u / radius * light.sun, -1, 1)
    colour = _foliage(rng) * light.tint * (sunny + 0.22 * leaves + 0.1 * ragged)[..., None]
    canvas.paint(patch, mask, np.clip(colour, 0.01, 1), TREE)


def paint_pole(canvas: Canvas, at: tuple[float, float], rng: Generator) -> None:
    """Paint a lamp post, a bollard or a mast with an arm over the road."""
    x, z = at
    bollard = rng.random() < 0.2
    top = rng.uniform(0.8, 1.1) if bollard else rng.uniform(4, 8)
    arm = 0.0 if bollard or rng.random() < 0.3 else float(-np.sign(x) * rng.uniform(0.8, 2.5))
    colour = grey(rng, 0.08, 0.75, 0.05)
    patch = canvas.camera.facing((x - abs(arm) - 0.4, x + abs(arm) + 0.4), (0, top + 0.4), z)
    if patch is None:
        return
    u, v = patch.along - x, patch.height
    half = thick(rng.uniform(0.06, 0.15), patch)
    mask = bar(u, v, (0, top), half)
    if arm:
        mask |= rod(u, v, ((0, top), (arm, top + 0.2)), thick(0.04, patch))
        mask |= rod(u, v, ((arm, top + 0.2), (arm * 1.15, top + 0.2)), thick(0.1, patch))
    rounded = 1 + 0.25 * np.clip(u / half, -1, 1)
    canvas.paint(patch, mask, colour * np.broadcast_to(rounded, v.shape)[..., None], POLE)


def paint_sign(canvas: Canvas, at: tuple[float, float], rng: Generator) -> None:
    """Paint a road sign, a name board or a traffic light, on its own pole."""
    x, z = at
    kind = rng.choice(("disc", "triangle", "board", "lights"))
    size = rng.uniform(0.35, 0.7)
    centre = rng.uniform(2.0, 3.2)
    patch = canvas.camera.facing((x - 2 * size, x + 2 * size), (0, centre + 2 * size), z)
    if patch is None:
        return
    u, v = patch.along - x, patch.height
    canvas.paint(patch, bar(u, v, (0, centre), thick(0.04, patch)), grey(rng, 0.25, 0.7, 0.03), POLE)
    outer, inner = _sign_shape(kind, u, v - centre, size)
    if kind == "lights":
        canvas.paint(patch, outer, DARK * rng.uniform(1, 3), SIGN)
        lamp = int(rng.integers(3))
        shine = np.array(((0.95, 0.2, 0.1), (0.95, 0.7, 0.1), (0.2, 0.9, 0.5))[lamp], np.float32)
        canvas.paint(patch, disc(u, v - centre - (1 - lamp) * size * 0.8, size * 0.3), shine, SIGN)
        return
    rim, face = (vivid(rng, (0.6, 0.95)), grey(rng, 0.7, 0.95, 0.03))[:: rng.choice((-1, 1))]
    canvas.paint(patch, outer, rim, SIGN)
    canvas.paint(patch, inner, face, SIGN)
    canvas.paint(patch, inner & (np.abs(v - centre) < size * 0.15), rim * 0.6, SIGN)


def paint_person(canvas: Canvas, at: tuple[float, float], rng: Generator, *, seat: float = 0.0) -> None:
    """Paint a person standing or walking, or sitting at height `seat`."""
    x, z = at
    tall = rng.uniform(0.85, 1.1) if rng.random() < 0.9 else rng.uniform(0.6, 0.8)
    if not seat:
        shadow_blob(canvas, (x, z), (0.45, 0.35), 0.4)
    patch = canvas.camera.facing((x - 0.7, x + 0.7), (0, 2.2 + seat), z)
    if patch is None:
        return
    u, v = (patch.along - x) / tall, (patch.height - seat * 0.55) / tall
    stride, lean = rng.uniform(0.03, 0.28), rng.uniform(-0.05, 0.05)
    pad = thick(0.0, patch)
    legs = rod(u, v, ((-stride, 0.0), (0, 0.85)), 0.085 + pad * 0.5) | rod(
        u, v, ((stride, 0.0), (0, 0.85)), 0.085 + pad * 0.5
    )
    if seat:
        legs = rod(u, v, ((0.02, 0.35), (-0.1, 0.85)), 0.09 + pad * 0.5)
    coat = taper(u, v, (rng.uniform(0.55, 0.85), 0.2), (1.45, 0.17))
    swing = rng.uniform(0.2, 0.4)
    arms = rod(u, v, ((-0.17, 1.4), (-swing, 0.85)), 0.06 + pad * 0.3)
    arms |= rod(u, v, ((0.17, 1.4), (swing, 0.9)), 0.06 + pad * 0.3)
    cloth = paint_colour(rng)
    canvas.paint(patch, legs & (patch.height >= 0), paint_colour(rng, 0.2) * 0.8, PERSON)
    canvas.paint(patch, arms, cloth * 0.85, PERSON)
    canvas.paint(patch, coat, cloth, PERSON)
    skin = np.array((0.78, 0.6, 0.48), np.float32) * rng.uniform(0.35, 1.1)
    canvas.paint(patch, disc(u - lean, v - 1.6, 0.115 + pad * 0.3), skin, PERSON)
    hair = disc(u - lean, v - 1.64, 0.12 + pad * 0.3) & (v > 1.62)
    canvas.paint(patch, hair, grey(rng, 0.04, 0.5), PERSON)


def paint_bicycle(canvas: Canvas, at: tuple[float, float], rng: Generator, *, rider: bool) -> None:
    """Paint a bicycle seen more or less from the side, parked or with a rider on it."""
    x, z = at
    squeeze = float(rng.uniform(0.3, 1.0) * rng.choice((-1, 1)))
    shadow_blob(canvas, (x, z), (0.8 * abs(squeeze) + 0.1, 0.3), 0.35)
    patch = canvas.camera.facing((x - 1.2, x + 1.2), (0, 1.3), z)
    if patch is None:
        return
    u, v = (patch.along - x) / squeeze, patch.height
    pipe = thick(0.028, patch) / max(abs(squeeze), 0.5)
    tyre = thick(0.03, patch)
    frame = rod(u, v, ((-0.5, 0.34), (0.0, 0.3)), pipe) | rod(u, v, ((0.0, 0.3), (-0.15, 0.9)), pipe)
    frame |= rod(u, v, ((0.0, 0.3), (0.38, 0.8)), pipe) | rod(u, v, ((-0.12, 0.75), (0.38, 0.8)), pipe)
    frame |= rod(u, v, ((0.5, 0.34), (0.34, 1.0)), pipe) | rod(u, v, ((-0.5, 0.34), (-0.12, 0.75)), pipe)
    dark = rod(u, v, ((0.28, 1.02), (0.44, 1.0)), pipe) | rod(u, v, ((-0.26, 0.92), (-0.05, 0.92)), pipe)
    for hub in (-0.5, 0.5):
        dark |= ring(u - hub, v - 0.34, 0.32, tyre)
    wheels = disc(u - 0.5, v - 0.34, 0.32) | disc(u + 0.5, v - 0.34, 0.32)
    spokes = canvas.image[patch.rows, patch.columns] * 0.75  # transparent, but labelled as bicycle
    canvas.paint(patch, wheels, spokes, BICYCLE)
    canvas.paint(patch, dark, DARK * rng.uniform(1, 4), BICYCLE)
    canvas.paint(patch, frame, paint_colour(rng, 0.6), BICYCLE)
    if rider:
        paint_person(canvas, (x - 0.1 * squeeze, z - 0.05), rng, seat=0.5)


def paint_car(canvas: Canvas, at: tuple[float, float], light: Light, rng: Generator) -> None:
    """Paint a car or van along the street, its near end at Z: the flank, then the back or front."""
    x, z = at
    van = rng.random() < 0.2
    width, length = (2.0, rng.uniform(4.8, 6.5)) if van else (1.78, rng.uniform(3.7, 4.8))
    top = rng.uniform(2.0, 2.9) if van else rng.uniform(1.4, 1.7)
    colour = paint_colour(rng, 0.45) * light.tint
    shadow_blob(canvas, (x, z + length / 2), (width * 0.62, length * 0.56), 0.65)
    face = x - width / 2 if x > 0 else x + width / 2
    flank = canvas.camera.beside(face, (0, top), (z, z + length))
    if flank is not None and abs(x) > width / 2:
        lit = 0.8 * light.wall(1 if x > 0 else -1)
        _paint_profile(
            canvas, flank, flank.along - np.float32(z), (length, top), van=van, colour=colour * lit
        )
    patch = canvas.camera.facing((x - width / 2, x + width / 2), (0, top), z)
    if patch is not None:
        _paint_end(canvas, patch, patch.along - x, (width, top), van=van, colour=colour, rng=rng)


def paint_crossing_car(canvas: Canvas, at: tuple[float, float], light: Light, rng: Generator) -> None:
    """Paint a car that crosses the view, seen from the side."""
    x, z = at
    van = rng.random() < 0.2
    length, top = (5.5, 2.4) if van else (rng.uniform(3.8, 4.7), rng.uniform(1.4, 1.6))
    shadow_blob(canvas, (x, z), (length * 0.55, 0.8), 0.6)
    patch = canvas.camera.facing((x - length / 2, x + length / 2), (0, top), z)
    if patch is not None:
        s = patch.along - np.float32(x - length / 2)
        s = np.float32(length) - s if rng.random() < 0.5 else s
        _paint_profile(canvas, patch, s, (length, top), van=van, colour=paint_colour(rng, 0.45) * light.tint)


def _paint_profile(
    canvas: Canvas, patch: Patch, s: Floats, size: tuple[float, float], *, van: bool, colour: Floats
) -> None:
    """Paint the side of a car; `s` runs from its tail (0) to its nose (length)."""
    (length, top), v = size, patch.height
    waist = 0.95 if van else 0.85
    rise = np.clip((v - waist) / (top - waist), 0, 1)
    screen = length * (0.9 if van else 0.74) - rise * (0.3 if van else 0.75)  # the sloping windscreen
    shape = (v > 0.22) & (v < top) & (s > 0) & (s < np.where(v < waist, np.float32(length), screen))
    canvas.paint(patch, shape, colour * (0.8 + 0.25 * np.clip(v / top, 0, 1))[..., None], CAR)
    rear = length * (0.62 if van else 0.06)
    pane = (v > waist + 0.04) & (v < top - 0.12) & (s > rear) & (s < screen - 0.12)
    canvas.paint(patch, pane & (np.abs(s - 0.4 * length) > 0.06), DARK * 3, CAR)
    for hub in (0.18 * length, 0.8 * length):
        canvas.paint(patch, disc(s - hub, v - 0.32, 0.33), DARK, CAR)
        canvas.paint(patch, disc(s - hub, v - 0.32, 0.17), DARK * 8, CAR)


def _paint_end(
    canvas: Canvas,
    patch: Patch,
    u: Floats,
    size: tuple[float, float],
    *,
    van: bool,
    colour: Floats,
    rng: Generator,
) -> None:
    """Paint the back or front of a car."""
    (width, top), v = size, patch.height
    half, waist = width / 2, 1.1 if van else 0.92
    wheels = (v < 0.4) & (v > 0) & (np.abs(np.abs(u) - half * 0.8) < 0.12)
    canvas.paint(patch, wheels, DARK, CAR)
    shape = taper(u, v, (0.25, half * 0.97), (waist, half)) | taper(
        u, v, (waist, half), (top, half * (0.96 if van else 0.88))
    )
    canvas.paint(patch, shape, colour * (0.75 + 0.2 * np.clip(v / top, 0, 1))[..., None], CAR)
    pane = taper(u, v, (waist + 0.03, half * 0.85), (top - 0.12, half * (0.82 if van else 0.76)))
    canvas.paint(patch, pane, DARK * rng.uniform(1, 6), CAR)
    lamps = (np.abs(np.abs(u) - half * 0.82) < 0.14) & (np.abs(v - waist + 0.2) < 0.1)
    canvas.paint(patch, lamps, ((0.75, 0.1, 0.08), (0.95, 0.93, 0.8))[rng.integers(2)], CAR)
    bumper: Mask = (v > 0.25) & (v < 0.42) & (np.abs(u) < half * 0.95)
    canvas.paint(patch, bumper, colour * 0.5, CAR)
    canvas.paint(patch, (np.abs(u) < 0.26) & (np.abs(v - 0.55) < 0.07), (0.85, 0.85, 0.8), CAR)


def _foliage(rng: Generator) -> Floats:
    """Colour of leaves: many greens, some autumn, some nearly grey."""
    palette = ((0.22, 0.38, 0.14), (0.3, 0.42, 0.2), (0.16, 0.28, 0.15), (0.52, 0.36, 0.14), (0.4, 0.4, 0.34))
    base = np.array(palette[rng.choice(5, p=(0.3, 0.3, 0.2, 0.1, 0.1))], np.float32)
    return base * np.float32(rng.uniform(0.7, 1.25))


def _sign_shape(kind: str, u: Floats, v: Floats, size: float) -> tuple[Mask, Mask]:
    """Outline and inner face of a sign."""
    if kind == "disc":
        return disc(u, v, size), disc(u, v, size * 0.72)
    if kind == "triangle":
        low, tip = -size * 0.8, size
        inner = taper(u, v, (low + 0.2 * size, size * 0.68), (tip - 0.35 * size, 0.0))
        return taper(u, v, (low, size), (tip, 0.0)), inner
    half = (size * 0.45, size * 1.3) if kind == "lights" else (size * 1.3, size * 0.75)
    outer = (np.abs(u) < half[0]) & (np.abs(v) < half[1])
    return outer, (np.abs(u) < half[0] * 0.88) & (np.abs(v) < half[1] * 0.82)


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

"""Composes one scene: layout, background, objects from far to near, then haze, lens and sensor noise."""

from __future__ import annotations

import zlib
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.random import PCG64, Generator
from numpy.typing import NDArray

from segtailor.data.scene import things
from segtailor.data.scene.canvas import (
    SKY,
    TILE_SIDE_PIXELS,
    Camera,
    Canvas,
    Floats,
    Light,
    Street,
    draw_light,
    draw_street,
    grain_tile,
)
from segtailor.data.scene.street import (
    draw_houses,
    paint_ground,
    paint_houses,
    paint_sky,
    paint_skyline,
    shade_heights,
)


class Scene(NamedTuple):
    """One view: image (h, w, 3), labels (h, w), and depth (h, w) in metres, infinite for sky."""

    image: NDArray[np.uint8]
    labels: NDArray[np.uint8]
    depth: NDArray[np.float32]


def render(seed: int, index: int, size: tuple[int, int], *, split: str = "train") -> Scene:
    """Render a scene; equal arguments give equal bytes, and another size shows the same street."""
    rng = np.random.default_rng((seed, zlib.crc32(split.encode()), index))
    street, light = draw_street(rng), draw_light(rng)
    canvas = Canvas(_camera(size, rng))
    houses = draw_houses(street, rng)
    paint_sky(canvas, light, rng)
    paint_skyline(canvas, light, rng)
    paint_ground(canvas, street, light, shade=shade_heights(houses), rng=rng)
    paint_houses(canvas, houses, street, light)
    _populate(canvas, street, light, rng)
    return Scene(_expose(canvas, light, rng), canvas.labels, canvas.depth)


def _camera(size: tuple[int, int], rng: Generator) -> Camera:
    height, width = size
    focal = rng.uniform(0.75, 1.25) * (height * width) ** 0.5
    centre = width * rng.uniform(0.36, 0.64)
    level, roll = height * rng.uniform(0.36, 0.54), rng.normal(0, 0.015)
    horizon = level + roll * (np.arange(width, dtype=np.float32) - width / 2)
    return Camera(
        size=size,
        focal=float(focal),
        centre=float(centre),
        height=float(rng.uniform(1.2, 2.1)),
        horizon=horizon.astype(np.float32),
    )


def _populate(canvas: Canvas, street: Street, light: Light, rng: Generator) -> None:
    """Draw the positions of all objects, then paint from far to near: soft shadows depend on this order."""
    busy = rng.uniform(0.5, 1.6)
    placed: list[tuple[float, str, float]] = []
    for side in (0, 1):
        out = 1 if side else -1
        kerb, wall = street.kerbs[side], street.walls[side]
        strip = abs(wall - kerb)
        for z in _spread(rng, 4.0, 60, 8 / busy):
            kind = _pick(rng, tree=0.38, pole=0.3, sign=0.32)
            placed.append((z, kind, kerb + out * rng.uniform(0.25, 0.8)))
        for z in _spread(rng, 4.0, 40, 5 / busy):
            kind = _pick(rng, person=0.65, bicycle=0.35)
            placed.append((z, kind, kerb + out * rng.uniform(0.2, 0.95) * strip))
        if rng.random() < 0.6:
            placed += [(z, "car", kerb - out * 1.15) for z in _spread(rng, 3.0, 70, 10 / busy, least=7.0)]
    left, right = street.kerbs
    placed += [
        (z, "car", rng.uniform(left + 1.6, right - 1.6)) for z in _spread(rng, 11, 90, 30 / busy, least=8)
    ]
    placed += [(z, "rider", rng.uniform(left + 0.8, right - 0.8)) for z in _spread(rng, 5, 40, 18 / busy)]
    placed += [(z, "person", rng.uniform(left, right)) for z in _spread(rng, 6, 40, 22 / busy)]
    for start, end in street.gaps:
        if rng.random() < 0.5:
            placed.append((rng.uniform(start + 2, end - 2), "crossing", rng.uniform(left - 8, right + 8)))
    seeds = rng.integers(2**32, size=len(placed))  # one each, so that objects out of view change nothing
    for (z, kind, x), seed in sorted(zip(placed, seeds, strict=True), reverse=True):
        if canvas.camera.sees(x, z, 3.5):
            _paint(canvas, kind, (float(x), float(z)), light, Generator(PCG64(seed)))


def _paint(canvas: Canvas, kind: str, at: tuple[float, float], light: Light, rng: Generator) -> None:
    if kind == "tree":
        things.paint_tree(canvas, at, light, rng)
    elif kind == "pole":
        things.paint_pole(canvas, at, rng)
    elif kind == "sign":
        things.paint_sign(canvas, at, rng)
    elif kind == "car":
        things.paint_car(canvas, at, light, rng)
    elif kind == "crossing":
        things.paint_crossing_car(canvas, at, light, rng)
    elif kind == "person":
        things.paint_person(canvas, at, rng)
    else:
        things.paint_bicycle(canvas, at, rng, rider=kind == "rider" or rng.random() < 0.3)


def _pick(rng: Generator, **shares: float) -> str:
    """Draw one of the names; the shares sum to 1. (Generator.choice takes ten times as long.)"""
    bounds = accumulate(shares.values())
    drawn = rng.random()
    return next(
        (name for name, bound in zip(shares, bounds, strict=True) if drawn < bound), next(iter(shares))
    )


def _spread(rng: Generator, near: float, far: float, every: float, least: float = 1.5) -> list[float]:
    """Draw distances between near and far, `every` metres on average and `least` apart."""
    found, at = [], near + rng.exponential(every)
    while at < far:
        found.append(float(at))
        at += least + rng.exponential(every)
    return found


def _expose(canvas: Canvas, light: Light, rng: Generator) -> NDArray[np.uint8]:
    """Turn the canvas into a photograph: haze, exposure, vignette, blur, noise."""
    height, width = canvas.camera.size
    air = np.exp(canvas.depth * np.float32(-1 / light.visibility))
    np.copyto(air, np.float32(1), where=canvas.labels == SKY)  # the sky has its haze already
    image = _soften((canvas.image - light.haze) * air[..., None] + light.haze, rng.uniform(0.08, 0.25))
    gain = np.float32(rng.uniform(0.75, 1.25)) * rng.uniform(0.93, 1.07, 3).astype(np.float32) * light.tint
    across = np.linspace(-1, 1, width, dtype=np.float32)[None]
    down = np.linspace(-1, 1, height, dtype=np.float32)[:, None]
    vignette = 1 - np.float32(rng.uniform(0, 0.14)) * (across**2 + down**2)
    image *= gain
    image *= vignette[..., None]
    noise = np.float32(rng.uniform(0.005, 0.035))
    image += (_grain((height, width), rng) * noise)[..., None]
    np.clip(image, 0, 1, out=image)
    image *= 255
    return image.astype(np.uint8)


def _soften(image: Floats, weight: float) -> Floats:
    """Blur by one pixel in each direction, as a lens does; this also smooths edges."""
    side, middle = np.float32(weight), np.float32(1 - 2 * weight)
    tall = image * middle
    tall[1:-1] += (image[:-2] + image[2:]) * side
    tall[[0, -1]] += image[[0, -1]] * (2 * side)
    wide = tall * middle
    wide[:, 1:-1] += (tall[:, :-2] + tall[:, 2:]) * side
    wide[:, [0, -1]] += tall[:, [0, -1]] * (2 * side)
    return wide


def _grain(size: tuple[int, int], rng: Generator) -> Floats:
    """Sensor noise: one tile, shuffled by row and column so that it does not repeat visibly."""
    rows, columns = rng.integers(TILE_SIDE_PIXELS, size=size[0]), rng.integers(TILE_SIDE_PIXELS, size=size[1])
    flat: Floats = grain_tile().reshape(-1)
    return flat.take((rows * TILE_SIDE_PIXELS)[:, None] + columns)

"""What stands still behind everything: sky, rows of houses with windows, a far skyline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from PIL import Image

from segtailor.data.scene.canvas import (
    BUILDING,
    SKY,
    TILE,
    TREE,
    Canvas,
    Floats,
    Patch,
    fraction,
    noise_at,
    noise_tile,
    texture,
)
from segtailor.data.scene.style import FAR, Light, Street, grey, vivid

WOODS = np.array((0.25, 0.33, 0.2), np.float32)


@dataclass(frozen=True, kw_only=True)
class House:
    """One house of a row: extent in Z, height, and the rhythm of its facade (metres and shares)."""

    side: int
    start: float
    end: float
    height: float
    colour: Floats
    glass: Floats
    shop: Floats
    bay: float
    floor: float
    window: tuple[float, float]
    lit: float
    shift: int
    rough: float


def paint_sky(canvas: Canvas, light: Light, rng: Generator) -> None:
    """Paint a gradient with clouds over the whole canvas; everything else covers it."""
    height, width = canvas.camera.size
    rows = min(height, max(1, int(canvas.camera.horizon.max()) + 1 + height // 32))  # below is only ground
    left, top = rng.integers(TILE // 2, size=2)
    part = Image.fromarray(noise_tile()[top : top + rng.integers(20, 90), left : left + TILE // 2])
    cloud = np.asarray(part.resize((width, rows), Image.Resampling.BICUBIC))
    cover = np.clip((cloud + 2 * light.clouds - 1) * 0.6, 0, 1)[..., None]
    low = (np.linspace(0, 1, rows, dtype=np.float32) ** 1.5)[:, None, None]
    blue = light.zenith + (light.haze - light.zenith) * low
    white = light.haze * (0.98 + 0.06 * cloud[..., None])
    canvas.image[:rows] = blue + (white - blue) * cover
    canvas.image[rows:] = light.haze
    canvas.labels[:] = SKY


def draw_houses(street: Street, rng: Generator) -> list[House]:
    """Draw the houses of both sides, leaving the side streets (and sometimes a plot) empty."""
    houses = []
    for side in (-1, 1):
        sparse = rng.random() < 0.25
        base = rng.uniform(5, 20)
        at = rng.uniform(-8, 2)
        while at < FAR:
            end = at + rng.uniform(8, 26) * (1 + max(at, 0) / 50)  # far houses are a few pixels: draw fewer
            for start, stop in street.gaps:
                if at < start < end:
                    end = start
                elif start <= at < stop:
                    at = stop
                    end = at + rng.uniform(8, 26)
            if rng.random() > (0.45 if sparse else 0.06):
                houses.append(_house(side, at, end, max(3.5, base * rng.uniform(0.6, 1.5)), rng))
            at = end
    return houses


def shade_heights(houses: list[House]) -> Floats:
    """Height of the row left and right for every metre of Z: what casts the long shadows."""
    heights = np.zeros((2, int(FAR) + 1), np.float32)
    for house in houses:
        heights[int(house.side > 0), max(0, int(house.start)) : max(0, int(house.end))] = house.height
    return heights


def paint_houses(canvas: Canvas, houses: list[House], street: Street, light: Light) -> None:
    """Paint each house: the front along the street, and the gable that faces the camera."""
    for house in houses:  # near to far, so that what is hidden costs nothing
        x = street.walls[int(house.side > 0)]
        roof = (0.0, house.height)
        outer = (x, x + house.side * 14)
        front = canvas.camera.beside(x, roof, (house.start, house.end))
        gable = canvas.camera.facing((min(outer), max(outer)), roof, house.start)
        for patch, brightness in ((front, light.wall(house.side)), (gable, 0.92 - 0.15 * light.sun)):
            if patch is None:
                continue
            mask = canvas.unhidden(patch) & (patch.height >= 0) & (patch.height <= house.height)
            if mask.any():
                canvas.paint(patch, mask, _facade(patch, house, brightness), BUILDING)


def paint_skyline(canvas: Canvas, light: Light, rng: Generator) -> None:
    """Close the view: far blocks and far woods, mostly haze."""
    at = -300.0
    while at < 300:
        width = rng.uniform(8, 45)
        woods = rng.random() < 0.35
        top = rng.uniform(4, 12) if woods else rng.uniform(6, 34)
        distance, shift = FAR + rng.uniform(1, 40), int(rng.integers(256))
        colour = (WOODS if woods else grey(rng, 0.3, 0.65)) * light.tint
        patch = canvas.camera.facing((at, at + width), (-6, top), distance)
        if patch is not None:  # all is drawn before: what is out of view changes nothing in view
            rough = texture(patch.along, patch.height, scale=1.5, shift=shift)
            shaded = colour * (1 + (0.2 if woods else 0.07) * rough)[..., None]
            edge = top + (1.5 * rough if woods else 0)
            canvas.paint(patch, patch.height <= edge, shaded, TREE if woods else BUILDING)
        at += width * rng.uniform(0.7, 1.5)


def _house(side: int, start: float, end: float, height: float, rng: Generator) -> House:
    brick = rng.random() < 0.3
    colour = np.array((0.5, 0.31, 0.25)) * rng.uniform(0.7, 1.2) if brick else grey(rng, 0.2, 0.8, 0.09)
    return House(
        side=side,
        start=start,
        end=end,
        height=height,
        colour=np.asarray(colour, np.float32),
        glass=grey(rng, 0.06, 0.45),
        shop=vivid(rng, (0.1, 0.5)) if rng.random() < 0.5 else grey(rng, 0.1, 0.6),
        bay=rng.uniform(1.6, 4.2),
        floor=rng.uniform(2.7, 3.8),
        window=(rng.uniform(0.3, 0.75), rng.uniform(0.35, 0.7)) if rng.random() < 0.9 else (0.0, 0.0),
        lit=rng.uniform(0, 0.25),
        shift=int(rng.integers(256)),
        rough=rng.uniform(0.02, 0.12),
    )


def _facade(patch: Patch, house: House, brightness: float) -> Floats:
    """Colour a facade: wall with grain, windows by bay and floor, a shop below, a cornice above."""
    along, height = patch.along - np.float32(house.start), patch.height
    bay, floor = along / np.float32(house.bay), height / np.float32(house.floor)
    window = (np.abs(fraction(bay) - 0.5) < house.window[0] / 2) & (height < house.height - 0.5)
    window = window & (np.abs(fraction(floor) - 0.55) < house.window[1] / 2) & (height > house.floor)
    shop = (np.abs(fraction(bay * 0.5) - 0.5) < 0.38) & (height < house.floor * 0.8) & (height > 0.4)
    pane = noise_at(floor.astype(np.int32) * 37 + house.shift, bay.astype(np.int32) * 61)
    bright = window & (pane > 2.2 - 5 * house.lit)
    part = window.view(np.uint8) + bright.view(np.uint8) + np.uint8(3) * shop.view(np.uint8)
    grain = texture(along, height, scale=12.0, shift=house.shift) * np.float32(house.rough)
    tone = np.where(window, np.float32(0.3) * pane, grain) + np.float32(1)
    tone -= np.float32(0.25) * (height > house.height - 0.5)
    # beyond a few pixels per bay windows would alias: fade them towards the wall
    clear = np.clip(1.8 - 3 * patch.step / house.bay, 0.15, 1)
    materials = np.stack([house.colour, house.glass, (0.9, 0.8, 0.55), house.shop]).astype(np.float32)
    colour: Floats = (materials - materials[0]).take(part, axis=0)
    colour *= np.asarray(clear, np.float32)[..., None]
    colour += materials[0]
    colour *= (tone * np.float32(brightness))[..., None]
    return colour

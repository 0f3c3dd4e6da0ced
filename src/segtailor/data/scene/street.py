"""The background of a scene: sky, far skyline, rows of houses, and the ground with markings, kerbs and cast shadows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from PIL import Image

from segtailor.data.scene.canvas import (
    BUILDING,
    ROAD,
    SIDEWALK,
    SKY,
    STREET_END_METRES,
    TILE_SIDE_PIXELS,
    TREE,
    Canvas,
    Floats,
    Light,
    Mask,
    Patch,
    Street,
    fraction,
    grey,
    noise_at,
    noise_tile,
    texture,
    vivid,
)

WOODS = np.array((0.25, 0.33, 0.2), np.float32)


@dataclass(frozen=True, kw_only=True)
class House:
    """One house of a row: extent in Z, height, and the pattern of its facade (metres and shares)."""

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


@dataclass(frozen=True, kw_only=True)
class Plane:
    """Ground coordinates of every row from `top` down: X, Z and whether the pixel shows ground at all."""

    top: int
    x: Floats
    z: Floats
    seen: Mask


def paint_sky(canvas: Canvas, light: Light, rng: Generator) -> None:
    """Paint a gradient with clouds over the whole canvas; everything else is painted over it."""
    height, width = canvas.camera.size
    rows = min(height, max(1, int(canvas.camera.horizon.max()) + 1 + height // 32))  # below is only ground
    left, top = rng.integers(TILE_SIDE_PIXELS // 2, size=2)
    part = Image.fromarray(
        noise_tile()[top : top + rng.integers(20, 90), left : left + TILE_SIDE_PIXELS // 2]
    )
    cloud = np.asarray(part.resize((width, rows), Image.Resampling.BICUBIC))
    cover = np.clip((cloud + 2 * light.clouds - 1) * 0.6, 0, 1)[..., None]
    low = (np.linspace(0, 1, rows, dtype=np.float32) ** 1.5)[:, None, None]
    blue = light.zenith + (light.haze - light.zenith) * low
    white = light.haze * (0.98 + 0.06 * cloud[..., None])
    canvas.image[:rows] = blue + (white - blue) * cover
    canvas.image[rows:] = light.haze
    canvas.labels[:] = SKY


def paint_skyline(canvas: Canvas, light: Light, rng: Generator) -> None:
    """Paint far buildings and woods at the horizon, mostly haze."""
    at = -300.0
    while at < 300:
        width = rng.uniform(8, 45)
        woods = rng.random() < 0.35
        top = rng.uniform(4, 12) if woods else rng.uniform(6, 34)
        distance, shift = STREET_END_METRES + rng.uniform(1, 40), int(rng.integers(256))
        colour = (WOODS if woods else grey(rng, 0.3, 0.65)) * light.tint
        patch = canvas.camera.facing((at, at + width), (-6, top), distance)
        if patch is not None:  # all is drawn before: what is out of view changes nothing in view
            rough = texture(patch.along, patch.height, scale=1.5, shift=shift)
            shaded = colour * (1 + (0.2 if woods else 0.07) * rough)[..., None]
            edge = top + (1.5 * rough if woods else 0)
            canvas.paint(patch, patch.height <= edge, shaded, TREE if woods else BUILDING)
        at += width * rng.uniform(0.7, 1.5)


def draw_houses(street: Street, rng: Generator) -> list[House]:
    """Draw the houses of both sides, leaving the side streets (and sometimes a plot) empty."""
    houses = []
    for side in (-1, 1):
        sparse = rng.random() < 0.25
        base = rng.uniform(5, 20)
        at = rng.uniform(-8, 2)
        while at < STREET_END_METRES:
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
    """Return the height of the houses left and right for every metre of Z: they cast the long shadows."""
    heights = np.zeros((2, int(STREET_END_METRES) + 1), np.float32)
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


def paint_ground(canvas: Canvas, street: Street, light: Light, *, shade: Floats, rng: Generator) -> None:
    """Paint the ground; `shade` (2, metres) is the height of the houses left and right at each metre."""
    plane = plane_of(canvas)
    x, z = plane.x, plane.z
    middle, half = sum(street.kerbs) / 2, (street.kerbs[1] - street.kerbs[0]) / 2
    in_gap = np.zeros(z.shape, bool)
    for start, end in street.gaps:
        in_gap |= (z > start + 0.5) & (z < end - 0.5)
    road = (np.abs(x - middle) < half) | in_gap
    tone = _grain(plane, road, focal=canvas.camera.focal, rng=rng)
    kerb = ~in_gap & (np.abs(np.abs(x - middle) - half - 0.1) < 0.12)
    tone += kerb * np.float32(rng.choice((-0.3, 0.25)))
    tone *= 1 - np.float32(0.45 * light.sun) * _shadow(plane, street, light, shade)
    materials = _materials(rng)
    surface = 1 - road.view(np.uint8)  # 0 road, 1 pavement, 2 marking
    surface[_marked(plane, street, in_gap, rng)] = 2
    colour = materials.take(surface, axis=0)
    colour *= tone[..., None]
    _place(canvas, plane, colour, road)


def shadow_blob(canvas: Canvas, at: tuple[float, float], radii: tuple[float, float], strength: float) -> None:
    """Darken the ground under an object centred at (X, Z); call before the object itself is painted."""
    camera, (x, z), (across, ahead) = canvas.camera, at, radii
    if ahead * camera.focal * camera.height < 0.3 * z * z:
        return  # under a third of a pixel high
    near, far = max(z - ahead, 0.5), z + ahead
    base = camera.focal * camera.height
    sides = [(x + sign * across) / depth for sign in (-1, 1) for depth in (near, far)]
    columns = camera.span(min(sides), max(sides))
    if columns.start >= columns.stop:
        return
    horizon = camera.horizon[columns]
    top, bottom = float(horizon.min()) + base / far, float(horizon.max()) + base / near + 1
    rows = slice(max(int(top), 0), min(int(bottom), camera.size[0]))
    if rows.start >= rows.stop:
        return
    ground_z = np.float32(base) / np.maximum(camera.row[rows, columns], np.float32(1e-3))
    ground_x = camera.column[:, columns] * ground_z
    r = ((ground_x - x) / across) ** 2 + ((ground_z - z) / ahead) ** 2
    is_ground = np.abs(canvas.depth[rows, columns] - ground_z) < 0.05 * ground_z + 0.05
    dark = np.where(
        is_ground, np.float32(strength) * np.minimum(np.maximum(1.6 - 1.6 * r, 0), 1), np.float32(0)
    )
    canvas.image[rows, columns] *= (1 - dark)[..., None]


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


def plane_of(canvas: Canvas) -> Plane:
    """Intersect all rays below the horizon with the ground."""
    camera = canvas.camera
    top = int(np.clip(np.floor(camera.horizon.min()), 0, camera.size[0] - 1))
    drop = camera.row[top:]
    z = np.float32(camera.focal * camera.height) / np.maximum(drop, np.float32(1e-3))
    return Plane(top=top, x=camera.column * z, z=z, seen=(drop > 0) & (z < STREET_END_METRES))


def _materials(rng: Generator) -> Floats:
    """Draw the colours of road, pavement and markings; the first two are similar, and either can be brighter."""
    road = grey(rng, 0.22, 0.5, 0.03)
    step = rng.uniform(0.03, 0.16) * rng.choice((-1, 1), p=(0.3, 0.7))
    pavement = np.clip(road + step + rng.uniform(-0.03, 0.03, 3), 0.12, 0.8)
    paint = rng.choice(((0.85, 0.85, 0.83), (0.85, 0.72, 0.25)), p=(0.8, 0.2))
    return np.stack([road, pavement, 0.25 * road + 0.75 * paint]).astype(np.float32)


def _grain(plane: Plane, road: Mask, *, focal: float, rng: Generator) -> Floats:
    """Brightness of the bare ground: grit, patches and, on pavements and some roads, joints between slabs."""
    tone = 1 + np.float32(0.05) * texture(plane.x, plane.z, scale=21.0, shift=int(rng.integers(256)))
    tone += np.float32(0.06) * texture(plane.x, plane.z, scale=2.0, shift=int(rng.integers(256)))
    paved_road = rng.random() < 0.25  # the joints then tell nothing
    depth = np.where(road, np.float32(0.22 if paved_road else 0), np.float32(rng.uniform(0, 0.3)))
    return np.asarray(tone - depth * _slabs(plane.x, plane.z, focal, rng))


def _slabs(x: Floats, z: Floats, focal: float, rng: Generator) -> Floats:
    """Joints of paving slabs, fading where a pixel covers more than a joint."""
    side = rng.uniform(0.4, 1.2)
    joint = 0.035 + z / focal * 0.5
    fade = np.clip(1.6 - 6 * (z / focal) / side, 0, 1)
    across = np.abs(fraction(x / side) - 0.5) > 0.5 - joint / side
    along = np.abs(fraction(z / side) - 0.5) > 0.5 - (joint + z * z / (1.5 * focal) * 0.25) / side
    far = z * z / (1.5 * focal) < 0.7 * side  # along the view joints merge much sooner
    return np.asarray((across | (along & far)) * fade, np.float32)


def _marked(plane: Plane, street: Street, in_gap: Mask, rng: Generator) -> Mask:
    """Return lane lines, edge lines and a zebra crossing: part of the road, worn by noise."""
    x, z = plane.x, plane.z
    width = np.float32(0.09) + z * np.float32(0.0012)
    lane = (street.kerbs[1] - street.kerbs[0]) / street.lanes
    marked = np.zeros(z.shape, bool)
    dash, phase = rng.uniform(5, 9), rng.uniform(0, 9)
    for index in range(1, street.lanes):
        solid = rng.random() < 0.25
        line = np.abs(x - np.float32(street.kerbs[0] + index * lane)) < width
        marked |= line if solid else line & (fraction((z + phase) / dash) < 0.45)
    if rng.random() < 0.4:
        marked |= (np.abs(x - street.kerbs[0] - 0.35) < width) | (np.abs(x - street.kerbs[1] + 0.35) < width)
    marked &= ~in_gap
    if street.gaps and rng.random() < 0.7:
        start = street.gaps[0][0] - 5
        inside = (x > street.kerbs[0] + 0.2) & (x < street.kerbs[1] - 0.2)
        marked &= (z < start - 1.2) | (z > start + 4)
        marked |= (z > start) & (z < start + 3) & (fraction(x) < 0.5) & inside
        marked |= (
            (z > start - 1.2) & (z < start - 0.8) & inside & (x > (street.kerbs[0] + street.kerbs[1]) / 2)
        )
    worn = texture(x, z, scale=6.0, shift=int(rng.integers(256))) > rng.uniform(0.4, 2.5)
    return np.asarray(marked & ~worn)


def _shadow(plane: Plane, street: Street, light: Light, shade: Floats) -> Floats:
    """Shadow of the houses on the sun side: as long as they are high."""
    left = light.side < 0
    index = np.minimum(plane.z, STREET_END_METRES - 1).astype(np.int32)
    reach = shade[0 if left else 1][index] * np.float32(0.55)
    wall = np.float32(street.walls[0 if left else 1])
    covered = plane.x < wall + reach if left else plane.x > wall - reach
    return np.asarray(covered, np.float32)


def _place(canvas: Canvas, plane: Plane, colour: Floats, road: Mask) -> None:
    window = slice(plane.top, None)
    np.copyto(canvas.image[window], colour, where=plane.seen[..., None])
    np.copyto(canvas.labels[window], np.where(road, np.uint8(ROAD), np.uint8(SIDEWALK)), where=plane.seen)
    np.copyto(canvas.depth[window], plane.z, where=plane.seen)

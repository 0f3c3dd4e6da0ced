"""What all painters of a scene share: classes, camera, canvas with a depth test, street layout, light, colours, noise.

World: X metres to the right, V metres above the ground, Z metres ahead. Layout and light do not depend on the image
size, so one scene looks the same at any resolution.
"""

from __future__ import annotations

import colorsys
import math
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from segtailor.core.task import Colour

Floats: TypeAlias = NDArray[np.floating[Any]]  # float32 everywhere; NumPy's own types are less sure
Mask: TypeAlias = NDArray[np.bool_]
CLASSES = ("sky", "building", "tree", "road", "sidewalk", "pole", "sign", "car", "person", "bicycle")
PALETTE: tuple[Colour, ...] = (
    (112, 168, 220), (120, 104, 96), (84, 142, 60), (98, 72, 128), (224, 120, 200),
    (190, 190, 170), (240, 210, 40), (30, 60, 190), (220, 40, 60), (255, 140, 40),
)  # fmt: skip
SKY, BUILDING, TREE, ROAD, SIDEWALK, POLE, SIGN, CAR, PERSON, BICYCLE = range(len(CLASSES))
TILE_SIDE_PIXELS = 256  # of the noise tile; a power of two, so that wrapping is a bit mask
NEAREST_METRES = 0.4  # surfaces that are closer are not drawn
STREET_END_METRES = 220.0  # metres: the street ends here


class Patch(NamedTuple):
    """The pixels of one upright surface: where they are, and their world coordinates.

    `along` (1, columns) is X for surfaces facing the camera and Z for those beside it; `height` (rows,
    columns) is V; `distance` is Z, a number or one per column; `pixel` is the size of a pixel in metres,
    alike; `step` is how far `along` moves from one column to the next.
    """

    rows: slice
    columns: slice
    along: Floats
    height: Floats
    distance: float | Floats
    pixel: float | Floats
    step: float | Floats


@dataclass(frozen=True, kw_only=True)
class Camera:
    """Where the camera is and looks; `horizon` is a row per column, so a tilted camera is a sheared one."""

    size: tuple[int, int]
    focal: float
    centre: float
    height: float
    horizon: Floats

    @cached_property
    def column(self) -> Floats:
        """Horizontal tangent of the ray through each column (1, columns)."""
        steps = np.arange(self.size[1], dtype=np.float32) + 0.5
        return ((steps - self.centre) / self.focal)[None]

    @cached_property
    def row(self) -> Floats:
        """Pixels below the horizon of every pixel (rows, columns)."""
        return np.arange(self.size[0], dtype=np.float32)[:, None] + (0.5 - self.horizon[None])

    def sees(self, x: float, z: float, reach: float) -> bool:
        """Tell whether anything within `reach` metres of X at distance Z may be in view."""
        left, right = float(self.column[0, 0]), float(self.column[0, -1])
        return z > NEAREST_METRES and (x - reach) / z < right and (x + reach) / z > left

    def facing(self, x: tuple[float, float], v: tuple[float, float], z: float) -> Patch | None:
        """Return the pixels of an upright rectangle that faces the camera, or None when out of view."""
        if z < NEAREST_METRES:
            return None
        columns = self.span(x[0] / z, x[1] / z)
        along = self.column[:, columns] * np.float32(z)
        return self._patch(columns, along, v, z, z / self.focal)

    def beside(self, x: float, v: tuple[float, float], z: tuple[float, float]) -> Patch | None:
        """Return the pixels of an upright rectangle along the street at lateral position `x`."""
        near = max(z[0], NEAREST_METRES)
        if near >= z[1] or abs(x) < 0.05:  # edge on: no area
            return None
        tangents = sorted((x / near, x / z[1]))
        columns = self.span(tangents[0], tangents[1])
        tangent = self.column[:, columns]
        distance = np.float32(x) / np.where(np.abs(tangent) < 1e-6, np.float32(1e-6), tangent)
        return self._patch(
            columns, distance, v, distance, distance * distance / np.float32(self.focal * abs(x))
        )

    def span(self, left: float, right: float) -> slice:
        """Return the columns between two horizontal tangents."""
        width = self.size[1]
        first = math.ceil(min(max(left * self.focal + self.centre - 0.5, 0), width))
        last = math.floor(min(max(right * self.focal + self.centre - 0.5, -1), width - 1)) + 1
        return slice(first, max(first, last))

    def _patch(
        self,
        columns: slice,
        along: Floats,
        v: tuple[float, float],
        distance: float | Floats,
        step: float | Floats,
    ) -> Patch | None:
        if columns.start >= columns.stop:
            return None
        horizon = self.horizon[columns]
        pixel: float | Floats = distance / self.focal
        top = float((horizon + (self.height - v[1]) / pixel).min())
        bottom = float((horizon + (self.height - v[0]) / pixel).max())
        rows = slice(max(math.floor(top), 0), min(math.ceil(bottom) + 1, self.size[0]))
        if rows.start >= rows.stop:
            return None
        return Patch(
            rows, columns, along, self.height - self.row[rows, columns] * pixel, distance, pixel, step
        )


class Canvas:
    """Image (float, 0..1), labels and depth (metres, infinite for sky) that surfaces are painted on."""

    def __init__(self, camera: Camera) -> None:
        self.camera = camera
        self.image: Floats = np.zeros((*camera.size, 3), np.float32)
        self.labels: NDArray[np.uint8] = np.zeros(camera.size, np.uint8)
        self.depth: NDArray[np.float32] = np.full(camera.size, np.inf, np.float32)

    def unhidden(self, patch: Patch) -> Mask:
        """Return where a patch is nearer than everything painted so far; at equal distance the later one is visible."""
        return np.asarray(self.depth[patch.rows, patch.columns] > patch.distance - np.float32(1e-3))

    def paint(self, patch: Patch, mask: Mask, colour: ArrayLike, label: int) -> None:
        """Paint the masked pixels of a patch where it is visible."""
        window = (patch.rows, patch.columns)
        visible = mask & self.unhidden(patch)
        np.copyto(self.image[window], np.asarray(colour, np.float32), where=visible[..., None])
        np.copyto(self.labels[window], np.uint8(label), where=visible)
        np.copyto(self.depth[window], np.asarray(patch.distance, np.float32), where=visible)


@dataclass(frozen=True, kw_only=True)
class Street:
    """Lateral layout in metres, camera at 0: kerbs and walls (left, right); side streets as spans of Z."""

    kerbs: tuple[float, float]
    walls: tuple[float, float]
    gaps: tuple[tuple[float, float], ...]
    lanes: int


@dataclass(frozen=True, kw_only=True)
class Light:
    """Sun side (-1 left, 1 right), its strength, and the colours of sun, sky light and haze."""

    side: int
    sun: float
    tint: Floats
    zenith: Floats
    haze: Floats
    visibility: float
    clouds: float

    def wall(self, side: int) -> float:
        """Brightness of a wall on the given side: lit when it faces the sun."""
        return 1.0 + (0.18 if side != self.side else -0.32) * self.sun


def draw_street(rng: Generator) -> Street:
    """Draw the layout: two to four lanes, pavements of 1.5 to 5 m, up to three side streets."""
    lanes = int(rng.choice((2, 3, 4), p=(0.55, 0.25, 0.2)))
    width = lanes * rng.uniform(2.9, 3.6)
    camera = rng.uniform(0.35, 0.72) * width  # from the left kerb: on the right half more often than not
    kerbs = (-camera, width - camera)
    pavements = rng.uniform(1.5, 5.0, 2)
    gaps: list[tuple[float, float]] = []
    at = rng.uniform(8, 45)
    while at < 120 and len(gaps) < 3:
        gaps.append((float(at), float(at + rng.uniform(7, 13))))
        at += rng.uniform(28, 70)
    return Street(
        kerbs=(float(kerbs[0]), float(kerbs[1])),
        walls=(float(kerbs[0] - pavements[0]), float(kerbs[1] + pavements[1])),
        gaps=tuple(gaps),
        lanes=lanes,
    )


def draw_light(rng: Generator) -> Light:
    """Draw the weather: clear, overcast or low warm sun."""
    weather = rng.choice(3, p=[0.45, 0.35, 0.2])
    zenith, haze, sun, clouds = (
        ((0.30, 0.50, 0.85), (0.72, 0.82, 0.92), 1.0, rng.uniform(0, 0.6)),
        ((0.66, 0.69, 0.74), (0.80, 0.81, 0.83), 0.15, rng.uniform(0.5, 1)),
        ((0.45, 0.50, 0.66), (0.93, 0.78, 0.62), 0.8, rng.uniform(0.2, 0.9)),
    )[weather]
    tint = np.array([(1.04, 1.0, 0.94), (0.97, 0.99, 1.03), (1.12, 0.97, 0.82)][weather], np.float32)
    jitter = rng.uniform(0.85, 1.1)
    return Light(
        side=int(rng.choice((-1, 1))),
        sun=sun * rng.uniform(0.6, 1),
        tint=tint,
        zenith=np.clip(np.array(zenith, np.float32) * jitter, 0, 1),
        haze=np.clip(np.array(haze, np.float32) * jitter, 0, 1),
        visibility=float(np.exp(rng.uniform(np.log(70), np.log(600)))),
        clouds=float(clouds),
    )


def grey(rng: Generator, low: float, high: float, chroma: float = 0.06) -> Floats:
    """Draw a muted colour; road, pavement, walls, poles and many cars share this distribution."""
    level, spread = rng.uniform(low, high), rng.random(3, dtype=np.float32)
    colour = np.float32(level - chroma) + spread * np.float32(2 * chroma)
    return np.asarray(np.maximum(colour, np.float32(0.02)))


def vivid(rng: Generator, saturation: tuple[float, float] = (0.3, 0.9)) -> Floats:
    """Draw a colour of any hue."""
    colour = colorsys.hsv_to_rgb(rng.random(), rng.uniform(*saturation), rng.uniform(0.25, 0.9))
    return np.array(colour, np.float32)


def paint_colour(rng: Generator, share_vivid: float = 0.5) -> Floats:
    """Draw a colour of lacquer or cloth: vivid or muted."""
    return vivid(rng) if rng.random() < share_vivid else grey(rng, 0.05, 0.9)


def texture(across: Floats, down: Floats, *, scale: float, shift: int = 0) -> Floats:
    """Read fractal noise at world coordinates; `scale` is cells per metre, `shift` picks another part."""
    i = (down * np.float32(scale)).astype(np.int32) + shift
    j = (across * np.float32(scale)).astype(np.int32) + 7 * shift
    return noise_at(i, j)


def fraction(value: Floats) -> Floats:
    """Return the fractional part, from 0 to 1 (several times faster than the remainder operator)."""
    return np.asarray(value - np.floor(value))


def noise_at(row: NDArray[np.int32], column: NDArray[np.int32]) -> Floats:
    """Read fractal noise at any integer cells."""
    flat: Floats = noise_tile().reshape(-1)
    last = TILE_SIDE_PIXELS - 1
    return flat.take(((row & last) * TILE_SIDE_PIXELS) | (column & last))  # 4x faster than two index arrays


@cache
def noise_tile() -> Floats:
    """Return one tile of fractal noise (mean 0, deviation 1) that repeats without a seam."""
    rng = np.random.default_rng(20240229)
    frequency = np.hypot(
        *np.meshgrid(np.fft.fftfreq(TILE_SIDE_PIXELS), np.fft.rfftfreq(TILE_SIDE_PIXELS), indexing="ij")
    )
    spectrum = (
        np.fft.rfft2(rng.standard_normal((TILE_SIDE_PIXELS, TILE_SIDE_PIXELS)))
        / np.maximum(frequency, 1 / TILE_SIDE_PIXELS) ** 0.8
    )
    spectrum[0, 0] = 0
    field = np.fft.irfft2(spectrum, s=(TILE_SIDE_PIXELS, TILE_SIDE_PIXELS))
    tile = np.asarray(field / field.std(), np.float32)
    tile.setflags(write=False)
    return tile


@cache
def grain_tile() -> Floats:
    """Return one tile of white noise (deviation 1) for sensor noise and fine grit."""
    tile = (
        np.random.default_rng(19991231)
        .standard_normal((TILE_SIDE_PIXELS, TILE_SIDE_PIXELS))
        .astype(np.float32)
    )
    tile.setflags(write=False)
    return tile

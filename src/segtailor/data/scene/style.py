"""What all of one scene shares: light, weather, street layout. Drawn once, independent of the size."""

from __future__ import annotations

import colorsys
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from segtailor.data.scene.canvas import Floats

FAR = 220.0  # metres: the street ends here


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


def grey(rng: Generator, low: float, high: float, chroma: float = 0.06) -> Floats:
    """Draw a muted colour: the one distribution that road, pavement, walls, poles and many cars share."""
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

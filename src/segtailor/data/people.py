"""The synthetic pose dataset: pictures of one stick person each, drawn on demand, the same for the same seed.

Right limbs are warm, left limbs blue, so that the sides differ in any pose, also seen from behind.
"""

from __future__ import annotations

import colorsys
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from segtailor.core.errors import DataProblem, unknown
from segtailor.core.ranges import parse_size
from segtailor.core.task import Colour
from segtailor.data.dataset import Severity
from segtailor.data.person_crops import PersonCrops
from segtailor.tasks.pose.persons import Person, PersonView, outside
from segtailor.tasks.pose.skeletons import MPII, Skeleton

VERSION = 1  # raise it whenever the drawing changes: it is part of the fingerprint of cached samples
MIN_SIDE_PIXELS, MAX_SIDE_PIXELS = 32, 2048
DEFAULT_IMAGES = (("train", 400), ("val", 100))
SUPERSAMPLING = 2  # people are drawn this many times larger, then reduced
# Lengths as shares of the height of a person standing upright.
HEAD, NECK, TORSO, THIGH, SHIN, UPPER_ARM, FOREARM = 0.135, 0.05, 0.29, 0.24, 0.24, 0.17, 0.155
SHOULDER, HIP, LIMB = 0.11, 0.07, 0.065  # half widths, and the thickness of limbs
Points: TypeAlias = NDArray[np.float64]
Place: TypeAlias = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class RenderedPerson:
    """One picture, not yet drawn."""

    seed: int
    split: str
    index: int
    size: tuple[int, int]

    @property
    def name(self) -> str:
        """Unique within the split."""
        return f"{self.split}_{self.index:06d}"

    @property
    def fingerprint(self) -> str:
        """Everything that the pixels depend on."""
        height, width = self.size
        return f"people/{VERSION}/{self.seed}/{self.split}/{self.index}/{height}x{width}"

    @property
    def source(self) -> None:
        """No file."""

    def read(self) -> PersonView:
        """Draw the picture; joints outside of it are unlabelled, the box ends at its border."""
        rng = np.random.default_rng((self.seed, zlib.crc32(self.split.encode()), self.index))
        figure = draw_figure(self.size, rng)
        joints = np.column_stack((figure.joints, np.full(len(figure.joints), 2))).astype(np.float32)
        joints[outside(joints, self.size)] = 0
        height, width = self.size
        margin = LIMB * figure.height / 2
        left, top = np.clip(figure.joints.min(0) - margin, 0, (width - 8, height - 8))
        right, bottom = np.clip(figure.joints.max(0) + margin, (left + 8, top + 8), (width, height))
        person = Person(
            id=self.name,
            picture=self.name,
            box=(float(left), float(top), float(right - left), float(bottom - top)),
            joints=joints,
            head_size=figure.head_size,
            area=figure.area,
        )
        return PersonView(figure.image, person)


@dataclass(frozen=True, kw_only=True)
class People:
    """Stick people: the number of pictures per split, their size (height, width), and the seed."""

    images: Mapping[str, int] = field(default_factory=lambda: dict(DEFAULT_IMAGES))
    size: tuple[int, int] = (128, 128)
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.images or min(self.images.values()) < 1:
            raise DataProblem(
                f"people: images={dict(self.images)} is too few; a split needs at least 1 image."
            )
        if not all(MIN_SIDE_PIXELS <= side <= MAX_SIDE_PIXELS for side in self.size) or self.seed < 0:
            raise DataProblem(
                f"people: size={self.size[0]}x{self.size[1]} with seed={self.seed} cannot be drawn; give "
                f"height x width, each {MIN_SIDE_PIXELS} to {MAX_SIDE_PIXELS}, and a seed of 0 or more."
            )

    @property
    def skeleton(self) -> Skeleton:
        """MPII's sixteen joints."""
        return MPII

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(self.images)

    def samples(self, split: str) -> Sequence[RenderedPerson]:
        """Return the people of a split."""
        if split not in self.images:
            raise unknown("split of people", split, self.images)
        return tuple(
            RenderedPerson(seed=self.seed, split=split, index=index, size=self.size)
            for index in range(self.images[split])
        )

    def problems(self) -> Sequence[tuple[Severity, str, str, str, str]]:
        """Return nothing: drawn people have correct annotations."""
        return ()


@dataclass(frozen=True, kw_only=True)
class RenderedCrops(PersonCrops):
    """Crops of stick people."""

    height: int = 128
    width: int = 96
    people: People = field(default_factory=People)

    @property
    def source(self) -> People:
        """The drawn people."""
        return self.people


def people_from_options(options: Mapping[str, str]) -> RenderedCrops:
    """Stick people with 16 joints: `size=128x128` of pictures, `crop=128x96`, `seed=0`, `train=400`, `val=100`."""
    counts = {key: _whole(key, text) for key, text in options.items() if key not in ("size", "crop", "seed")}
    height, width = parse_size(options.get("crop", "128x96"), name="synthetic-pose: crop", error=DataProblem)
    people = People(
        images={**dict(DEFAULT_IMAGES), **counts},
        size=parse_size(options.get("size", "128x128"), name="synthetic-pose: size", error=DataProblem),
        seed=_whole("seed", options.get("seed", "0")),
    )
    return RenderedCrops(height=height, width=width, people=people)


def _whole(name: str, text: str) -> int:
    if name not in ("train", "val", "test", "seed") or not re.fullmatch(r"\d{1,9}", text):
        raise DataProblem(
            f"synthetic-pose: {name}={text} is not an option; known: size=HxW, crop=HxW, seed=N, train=N, val=N, "
            "test=N."
        )
    return int(text)


class StickFigure(NamedTuple):
    """A drawn person: picture (height, width, 3), joints (16, 2), head size (pixels), covered area (square pixels)."""

    image: NDArray[np.uint8]
    joints: Points
    head_size: float
    area: float
    height: float  # pixels, of the person standing upright


@dataclass(frozen=True, kw_only=True)
class Clothes:
    """Colours of one person."""

    right: Colour
    left: Colour
    trunk: Colour
    skin: Colour


def draw_figure(size: tuple[int, int], rng: Generator) -> StickFigure:
    """Draw one person in a cluttered picture of `size` (height, width)."""
    joints = _placed(_pose(rng), size, rng)
    height = float(np.hypot(*(joints[7] - joints[6]))) / TORSO  # the torso is never foreshortened
    ground = _clutter(size, rng)
    layer = Image.new("RGBA", ground.size)
    _paint(layer, joints, LIMB * SUPERSAMPLING * height, _clothes(rng), behind=rng.random(2) < 0.5)
    ground.paste(layer, mask=layer)
    shown = ground.resize((size[1], size[0]), Image.Resampling.BOX)
    shown = shown.filter(ImageFilter.GaussianBlur(rng.uniform(0, 0.5)))
    grain = rng.normal(0, rng.uniform(1, 7), (*size, 1)) + rng.normal(0, 1.5, (*size, 3))
    image = np.clip(np.asarray(shown, np.float64) * rng.uniform(0.8, 1.15) + grain, 0, 255).astype(np.uint8)
    return StickFigure(
        image=image,
        joints=joints,
        head_size=float(np.hypot(*(joints[9] - joints[8]))),
        area=float((np.asarray(layer.getchannel("A")) > 0).sum() / SUPERSAMPLING**2),
        height=height,
    )


def _pose(rng: Generator) -> Points:
    """Draw a pose at random: joints (16, 2) as shares of the height, y downwards, pelvis at the origin."""
    joints = np.zeros((16, 2))
    up = -_along(rng.normal(0, math.radians(8)))
    joints[7] = TORSO * up
    joints[8] = joints[7] + NECK * up
    nod = rng.normal(0, math.radians(12))
    joints[9] = joints[8] - HEAD * _along(math.atan2(-up[0], -up[1]) + nod)
    facing = 1 if rng.random() < 0.75 else -1  # 1: seen from the front, the left side is on the right
    breadth = rng.uniform(0.55, 1)  # narrower when turned to the side
    across = np.array([-up[1], up[0]]) * facing * breadth
    for side, hip, shoulder in ((-1, (2, 1, 0), (12, 11, 10)), (1, (3, 4, 5), (13, 14, 15))):
        out = side * facing
        joints[hip[0]] = side * HIP * across
        joints[shoulder[0]] = joints[7] + side * SHOULDER * across + 0.02 * up
        spread = rng.triangular(-15, 12, 70)
        _limb(joints, hip, (THIGH, SHIN), (spread, spread + rng.triangular(-75, -5, 15)), out)
        lifted = rng.triangular(-25, 20, 165)
        _limb(joints, shoulder, (UPPER_ARM, FOREARM), (lifted, lifted + rng.triangular(-40, 15, 130)), out)
    tilt = rng.uniform(-70, 70) if rng.random() < 0.1 else rng.normal(0, 5)
    return joints @ _turn(math.radians(tilt)).T


def _limb(
    joints: Points,
    chain: tuple[int, ...],
    lengths: tuple[float, float],
    degrees: tuple[float, float],
    out: int,
) -> None:
    """Place the two bones of a limb from the first joint of a chain; 0 degrees is down, larger angles are outwards."""
    for index, (length, angle) in enumerate(zip(lengths, degrees, strict=True)):
        joints[chain[index + 1]] = joints[chain[index]] + length * _along(out * math.radians(angle))


def _along(angle: float) -> Points:
    return np.array([math.sin(angle), math.cos(angle)])


def _turn(angle: float) -> Points:
    return np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])


def _placed(pose: Points, size: tuple[int, int], rng: Generator) -> Points:
    """Scale and move a pose into the picture; one in seven is partly outside."""
    height, width = size
    low, high = pose.min(0) - LIMB, pose.max(0) + LIMB
    room = np.array([width, height], np.float64)
    zoom = rng.uniform(0.6, 0.97) * (room / (high - low)).min()
    spare = room - zoom * (high - low)
    corner = rng.random(2) * spare
    if rng.random() < 1 / 7:
        corner += rng.uniform(-0.25, 0.25, 2) * room
    return np.asarray((pose - low) * zoom + corner - 0.5)


def _clothes(rng: Generator) -> Clothes:
    def shade(
        hues: tuple[float, float], saturation: tuple[float, float], value: tuple[float, float]
    ) -> Colour:
        colour = colorsys.hsv_to_rgb(rng.uniform(*hues) % 1, rng.uniform(*saturation), rng.uniform(*value))
        return round(255 * colour[0]), round(255 * colour[1]), round(255 * colour[2])

    return Clothes(
        right=shade((-0.03, 0.09), (0.7, 1), (0.65, 1)),
        left=shade((0.54, 0.68), (0.6, 1), (0.6, 1)),
        trunk=shade((0, 1), (0, 0.6), (0.2, 0.95)),
        skin=shade((0.04, 0.11), (0.25, 0.6), (0.45, 1)),
    )


def _paint(
    layer: Image.Image, joints: Points, thick: float, clothes: Clothes, *, behind: NDArray[np.bool_]
) -> None:
    """Paint legs, trunk, head and arms; `behind` says whether the right and the left arm are behind the trunk."""
    draw = ImageDraw.Draw(layer)
    places = [((float(x) + 0.5) * SUPERSAMPLING, (float(y) + 0.5) * SUPERSAMPLING) for x, y in joints]
    sides = ((clothes.right, (2, 1, 0), (12, 11, 10)), (clothes.left, (3, 4, 5), (13, 14, 15)))
    for colour, leg, _ in sides:
        _two_bones(draw, [places[joint] for joint in leg], _darker(colour, 0.7), thick)
    for hidden in (True, False):
        for (colour, _, arm), back in zip(sides, behind.tolist(), strict=True):
            if back == hidden:
                _two_bones(draw, [places[joint] for joint in arm], colour, 0.8 * thick)
        if hidden:
            trunk = [places[joint] for joint in (12, 13, 3, 2)]
            draw.polygon(trunk, clothes.trunk)
            for start, end in pairwise((*trunk, trunk[0])):
                _bone(draw, start, end, clothes.trunk, 0.6 * thick)
            _bone(draw, places[7], places[8], clothes.skin, 0.7 * thick)
            _head(draw, places[8], places[9], clothes.skin)


def _two_bones(draw: ImageDraw.ImageDraw, chain: list[Place], colour: Colour, thick: float) -> None:
    """Paint a limb; the outer bone is darker and thinner, so that the joint is visible also in a straight limb."""
    _bone(draw, chain[1], chain[2], _darker(colour, 0.75), 0.75 * thick)
    _bone(draw, chain[0], chain[1], colour, thick)


def _bone(draw: ImageDraw.ImageDraw, start: Place, end: Place, colour: Colour, thick: float) -> None:
    draw.line((start, end), colour, max(1, round(thick)))
    radius = thick / 2
    for x, y in (start, end):
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), colour)


def _head(draw: ImageDraw.ImageDraw, neck: Place, top: Place, colour: Colour) -> None:
    """Paint an oval from neck to top, hair on its upper end."""
    along = np.subtract(top, neck)
    around = np.linspace(0, 2 * math.pi, 24, endpoint=False)
    oval = (
        np.cos(around)[:, None] * along / 2 + np.sin(around)[:, None] * np.array([along[1], -along[0]]) * 0.38
    )
    points = [(float(x), float(y)) for x, y in oval + np.add(neck, top) / 2]
    draw.polygon(points, colour)
    draw.polygon([*points[:6], *points[19:]], _darker(colour, 0.35))


def _darker(colour: Colour, share: float) -> Colour:
    return round(colour[0] * share), round(colour[1] * share), round(colour[2] * share)


def _muted(colours: Points, share: float) -> NDArray[np.uint8]:
    """Keep a share of the difference from grey."""
    grey = colours.mean(-1, keepdims=True)
    return np.asarray(grey + share * (colours - grey), np.uint8)


def _clutter(size: tuple[int, int], rng: Generator) -> Image.Image:
    """Paint a background of soft colours with ovals, bars and lines of any colour; some look like limbs."""
    full = (size[1] * SUPERSAMPLING, size[0] * SUPERSAMPLING)
    soft = _muted(rng.uniform(40, 220, (*rng.integers(2, 6, 2), 3)), 0.4)
    picture = Image.fromarray(soft).resize(full, Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(picture)
    for _ in range(rng.integers(8, 26)):
        colour = tuple(_muted(rng.uniform(20, 240, 3), rng.uniform(0.2, 0.9)).tolist())
        x, y = rng.uniform(-0.1, 1.1, 2) * full
        wide, tall = rng.exponential(0.1, 2) * min(full) + 2
        kind = rng.integers(3)
        if kind == 0:
            draw.ellipse((x - wide, y - tall, x + wide, y + tall), colour)
        elif kind == 1:
            draw.rectangle((x - wide, y - tall, x + wide, y + tall), colour)
        else:
            reach = rng.normal(0, 0.2, 2) * min(full)
            draw.line((x, y, x + reach[0], y + reach[1]), colour, int(rng.uniform(1, 0.06 * min(full)) + 1))
    return picture

"""Skeletons and errors drawn over a picture: left and right in different colours, uncertain joints left out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from segtailor.core.errors import DataProblem
from segtailor.core.task import Colour
from segtailor.tasks.kind import ERROR_COLOUR
from segtailor.tasks.pose.skeletons import Skeleton

COLOURS: dict[str, Colour] = {"left": (0, 190, 255), "right": (255, 130, 0), "middle": (140, 255, 60)}
OUTLINE: Colour = (20, 20, 24)
SUPERSAMPLING = 2  # drawn this many times larger, then reduced: PIL's lines are not antialiased


def draw_skeleton(
    image: NDArray[np.uint8],
    joints: Sequence[NDArray[np.floating]],
    skeleton: Skeleton,
    *,
    least: float = 0.2,
) -> NDArray[np.uint8]:
    """Draw people's joints, each (joints, 3): x, y, confidence or visibility, over a copy of the picture.

    Joints with a score below `least` and joints at NaN are left out with their limbs. Lines are thicker in larger
    pictures.
    """
    height, width = image.shape[:2]
    lines = Image.new("RGBA", (width * SUPERSAMPLING, height * SUPERSAMPLING))
    draw = ImageDraw.Draw(lines)
    thick = max(1.5, min(height, width) / 70) * SUPERSAMPLING
    for person in joints:
        if person.shape != (skeleton.count, 3):
            raise DataProblem(
                f"joints of shape {person.shape} do not fit '{skeleton.name}'; give ({skeleton.count}, 3)."
            )
        shown = np.isfinite(person).all(1) & (person[:, 2] >= least) & (np.abs(person[:, :2]) < 1e5).all(1)
        places = [
            ((float(x) + 0.5) * SUPERSAMPLING, (float(y) + 0.5) * SUPERSAMPLING) for x, y in person[:, :2]
        ]
        _draw_person(draw, places, shown.tolist(), skeleton, thick)
    small = lines.resize((width, height), Image.Resampling.BOX)
    return np.asarray(Image.alpha_composite(Image.fromarray(image).convert("RGBA"), small).convert("RGB"))


def limb_colour(skeleton: Skeleton, limb: tuple[int, int]) -> Colour:
    """Return the colour of a limb: of the side of its ends, or of the middle where they are on different sides."""
    sides = {skeleton.side(joint) for joint in limb} - {"middle"}
    return COLOURS[sides.pop() if len(sides) == 1 else "middle"]


def _draw_person(
    draw: ImageDraw.ImageDraw,
    places: Sequence[tuple[float, float]],
    shown: Sequence[bool],
    skeleton: Skeleton,
    thick: float,
) -> None:
    limbs = [limb for limb in skeleton.limbs if shown[limb[0]] and shown[limb[1]]]
    for grown, colour in ((0.5, OUTLINE), (0.0, None)):  # a dark outline keeps limbs visible on any ground
        for limb in limbs:
            ends = [places[joint] for joint in limb]
            draw.line(ends, colour or limb_colour(skeleton, limb), round(thick * (1 + grown)))
        for joint, (x, y) in enumerate(places):
            radius = thick * (0.85 + grown / 2)
            if shown[joint]:
                fill = colour or COLOURS[skeleton.side(joint)]
                draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill)


def draw_misses(
    image: NDArray[np.uint8], truth: NDArray[np.floating], found: NDArray[np.floating]
) -> NDArray[np.uint8]:
    """Draw a dot on each labelled joint (x, y, visibility) and a line from it to the predicted joint."""
    height, width = image.shape[:2]
    picture = Image.fromarray(image).resize(
        (width * SUPERSAMPLING, height * SUPERSAMPLING), Image.Resampling.BILINEAR
    )
    draw = ImageDraw.Draw(picture)
    thick = max(1.0, min(height, width) / 90) * SUPERSAMPLING
    for (x, y, seen), (other_x, other_y, _) in zip(truth, found, strict=True):
        ends = [(float(value) + 0.5) * SUPERSAMPLING for value in (x, y, other_x, other_y)]
        if not seen > 0 or not np.isfinite(ends).all():
            continue
        draw.line(ends, fill=ERROR_COLOUR, width=max(1, round(thick)))
        draw.ellipse([ends[0] - thick, ends[1] - thick, ends[0] + thick, ends[1] + thick], fill=OUTLINE)
    return np.asarray(picture.resize((width, height), Image.Resampling.BOX))

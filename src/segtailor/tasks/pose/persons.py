"""One annotated person: box, joints, head size and area; and the checks of annotations from files.

Coordinates are pixels with (0, 0) in the middle of the top left pixel; a box (x, y, width, height) holds `width`
pixels from pixel x on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from segtailor.core.codec import short
from segtailor.core.errors import DataProblem

Box: TypeAlias = tuple[float, float, float, float]
Joints: TypeAlias = NDArray[np.float32]  # (joints, 3): x, y, visibility (0 unknown, 1 hidden, 2 visible)
MAX_COORDINATE_PIXELS = 1e6  # more than the side of any picture


@dataclass(frozen=True, kw_only=True, eq=False)
class Person:
    """One person in one picture. `picture` is the file's path, or the name of a rendered picture.

    `head_size` (pixels) scales PCKh, `area` (square pixels) OKS; None where the annotations do not say.
    `crowd` marks a group that is neither trained on nor counted. `score` says how sure a detector is of the box; it is
    1 where the box is annotated.
    """

    id: str
    picture: str
    box: Box
    joints: Joints
    head_size: float | None = None
    area: float | None = None
    crowd: bool = False
    score: float = 1.0

    @property
    def labelled(self) -> NDArray[np.bool_]:
        """Which joints have a known place."""
        return np.asarray(self.joints[:, 2] > 0)


class PersonView(NamedTuple):
    """A decoded picture, uint8 (height, width, 3), and one person in it."""

    image: NDArray[np.uint8]
    person: Person


def outside(joints: Joints, size: tuple[float, float]) -> NDArray[np.bool_]:
    """Tell which joints lie outside of a picture of `size` (height, width)."""
    height, width = size
    x, y = joints[:, 0], joints[:, 1]
    inside = (x >= -0.5) & (x < width - 0.5) & (y >= -0.5) & (y < height - 0.5)
    return np.asarray(~inside)


def without_outside(person: Person, size: tuple[float, float]) -> Person:
    """Return the person with all joints outside of the picture unlabelled."""
    is_outside = person.labelled & outside(person.joints, size)
    if not is_outside.any():
        return person
    joints = person.joints.copy()
    joints[is_outside] = 0
    return replace(person, joints=joints)


def check_joints(joints: Any, count: int, *, who: str) -> Joints:
    """Return joints as (count, 3) numbers; another count, or a labelled joint without a valid place, raises."""
    wanted = f"expected are {count} x 3 numbers: x, y, visibility of {count} joints. Check which skeleton they follow."
    try:
        values = np.asarray(joints, np.float64)
    except (TypeError, ValueError, OverflowError):  # text, missing values, rows of several lengths
        raise DataProblem(f"{who} has joints {short(joints)}; {wanted}") from None
    if values.shape != (count, 3):
        raise DataProblem(f"{who} has joints of shape {values.shape}; {wanted}")
    labelled = ~(values[:, 2] <= 0)  # includes a visibility of NaN, which is refused below
    bad = ~(np.abs(values) < MAX_COORDINATE_PIXELS).all(1) & labelled
    if bad.any():
        where = int(np.flatnonzero(bad)[0])
        raise DataProblem(
            f"{who} has joint {where} at {values[where].tolist()}, which is not a place in a picture. "
            "Correct it or set its visibility to 0."
        )
    return np.asarray(np.where(labelled[:, None], values, 0), np.float32)


def check_box(box: Any, *, who: str) -> Box:
    """Return (x, y, width, height), or raise `DataProblem` where it is not a box or has no area."""
    numbers = tuple(number(value) for value in box) if isinstance(box, list | tuple | np.ndarray) else ()
    if len(numbers) != 4 or any(value is None or abs(value) >= MAX_COORDINATE_PIXELS for value in numbers):
        raise DataProblem(
            f"{who} has box {short(box)}, which is not one. Give four numbers: x, y, width, height."
        )
    x, y, width, height = (float(value) for value in numbers if value is not None)
    if width <= 0 or height <= 0:
        raise DataProblem(
            f"{who} has a box of {width:g} x {height:g} pixels, which holds nothing. Give its width and height "
            "(more than 0), or remove the person."
        )
    return x, y, width, height


def number(value: Any) -> float | None:
    """Return a finite number, or None for anything else, also for true and false."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer of hundreds of digits
        return None


def picture_below(folder: Path, name: Any, *, who: str) -> str:
    """Return the path of a picture named by an annotation file; a path outside of `folder` raises."""
    place = PurePosixPath(name) if isinstance(name, str) and "\0" not in name else None
    if place is None or not place.name or place.is_absolute() or ".." in place.parts or "\\" in str(place):
        raise DataProblem(
            f"{who} has picture {short(name)}, which is not a file below {folder}. Correct its name."
        )
    return str(folder / place)

"""Crops of one person at the network's input size, and the mapping of joints between picture and crop.

The box grows around its centre to the aspect ratio of the input, then by a margin; pixels outside of the picture are
black.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from segtailor.tasks.pose.persons import Box, Joints, PersonView, check_box, check_joints, outside
from segtailor.tasks.pose.skeletons import Skeleton

MARGIN = 1.25  # times the box (Xiao et al., 2018)


@dataclass(frozen=True, kw_only=True)
class Variation:
    """Changes to a crop: zoom (above 1: larger), clockwise rotation in degrees, mirrored or not."""

    zoom: float = 1.0
    degrees: float = 0.0
    mirrored: bool = False


PLAIN = Variation()


@dataclass(frozen=True, kw_only=True, eq=False)
class Crop:
    """The affine map from a picture to a crop of `size` (height, width): `matrix` (2, 3) maps x, y of the picture."""

    matrix: NDArray[np.float64]
    size: tuple[int, int]

    def to_crop(self, joints: NDArray[np.floating]) -> Joints:
        """Move joints (..., 3) into the crop; visibility or confidence stays."""
        return _moved(joints, self.matrix)

    def to_picture(self, joints: NDArray[np.floating]) -> Joints:
        """Move joints (..., 3) of the crop back into the picture."""
        return _moved(joints, _inverse(self.matrix))

    def cut(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Cut the crop (height, width, 3) out of a picture; large pictures are reduced first to avoid aliasing."""
        back = _inverse(self.matrix)
        picture = Image.fromarray(image)
        every = math.floor(math.hypot(back[0, 0], back[1, 0]))  # picture pixels per crop pixel
        every = max(1, min(every, *picture.size))
        # PIL maps output to input pixels and measures from pixel corners, we measure from pixel centres.
        back[:, 2] += 0.5 - back[:, :2].sum(1) / 2
        height, width = self.size
        return np.asarray(
            picture.reduce(every).transform(
                (width, height),
                Image.Transform.AFFINE,
                tuple((back / every).reshape(-1)),
                Image.Resampling.BILINEAR,
            )
        )


def crop_of(box: Box, size: tuple[int, int], *, margin: float = MARGIN, variation: Variation = PLAIN) -> Crop:
    """Return the crop of `size` (height, width) around a box; a box without area raises `DataProblem`."""
    x, y, box_width, box_height = check_box(box, who="a person")
    height, width = size
    zoom = min(width / box_width, height / box_height) / margin * variation.zoom
    angle = math.radians(variation.degrees)
    turn = zoom * np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    if variation.mirrored:
        turn[0] *= -1
    middle = np.array([x + (box_width - 1) / 2, y + (box_height - 1) / 2])
    shift = np.array([(width - 1) / 2, (height - 1) / 2]) - turn @ middle
    return Crop(matrix=np.column_stack((turn, shift)), size=size)


def cut_person(
    view: PersonView,
    skeleton: Skeleton,
    size: tuple[int, int],
    *,
    margin: float = MARGIN,
    variation: Variation = PLAIN,
) -> tuple[NDArray[np.uint8], Joints, Crop]:
    """Return pixels and joints of the crop, and the crop itself. Joints outside of the picture are unlabelled.

    Joints outside of the crop keep their place: they are part of the truth that a prediction is scored by. Heat maps
    and training crops leave them out.
    """
    image, person = view
    crop = crop_of(person.box, size, margin=margin, variation=variation)
    joints = check_joints(person.joints, skeleton.count, who=f"person {person.id}")
    moved = crop.to_crop(joints)
    unlabelled = (joints[:, 2] <= 0) | outside(joints, (image.shape[0], image.shape[1]))
    moved[unlabelled] = 0
    if variation.mirrored:
        moved = moved[list(skeleton.mirrored)]
    return crop.cut(image), moved, crop


def _moved(joints: NDArray[np.floating], matrix: NDArray[np.float64]) -> Joints:
    moved = np.asarray(joints, np.float32).copy()
    moved[..., :2] = joints[..., :2] @ matrix[:, :2].T + matrix[:, 2]
    return moved


def _inverse(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    turn = np.linalg.inv(matrix[:, :2])
    return np.column_stack((turn, -turn @ matrix[:, 2]))

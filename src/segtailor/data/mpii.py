"""MPII Human Pose (Andriluka et al., 2014) in its widely used JSON form: one list entry per person.

The official release is a MATLAB file; the JSON form has the same joints in one file per split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from segtailor.core.codec import read_json, short
from segtailor.core.errors import DataProblem
from segtailor.data.person_crops import AnnotationFile, Annotations, PersonCrops, PersonFiles, collect
from segtailor.tasks.pose.persons import Box, Joints, Person, check_box, check_joints, number, picture_below
from segtailor.tasks.pose.skeletons import MPII, Skeleton

MAX_FILE_BYTES = 64 * 2**20  # the published training list has 9 million
REFERENCE_HEIGHT_PIXELS = 200.0  # `scale` is the height of the person in units of this
HEAD_SHARE_OF_DIAGONAL = 0.6  # head size by the diagonal of the head box, as in the published PCKh program
CENTRE_SHIFT_PIXELS = 15.0  # by `scale`: centres move down to keep feet inside (Xiao et al., 2018)
SPLITS = {"train": "train", "valid": "val", "val": "val", "test": "test"}  # file stem -> split
FIELDS = ("image", "joints", "joints_vis", "center", "scale")
EXPECTED = (
    "Expected is a JSON list of {image, joints: 16 x [x, y], joints_vis: 16 x 0 or 1, center: [x, y], scale}; "
    "convert the official .mat file to it first."
)


@dataclass(frozen=True, kw_only=True)
class Mpii(PersonFiles):
    """MPII people: a folder with `annot/train.json`, `annot/valid.json` and `images/`, or one of these JSON files."""

    @property
    def skeleton(self) -> Skeleton:
        """Sixteen joints."""
        return MPII

    def find(self) -> Mapping[str, AnnotationFile]:
        """Find the annotation files by their usual names."""
        if self.path.is_file():
            above = self.path.parent
            root = above.parent if above.name == "annot" else above
            return {SPLITS.get(self.path.stem, self.path.stem): AnnotationFile(self.path, root / "images")}
        found = {
            split: AnnotationFile(file, self.path / "images")
            for stem, split in SPLITS.items()
            for file in (self.path / f"{stem}.json", self.path / "annot" / f"{stem}.json")
            if file.is_file()
        }
        if not found:
            raise DataProblem(f"{self.path} has no annot/train.json or annot/valid.json. {EXPECTED}")
        return found

    def read(self, source: AnnotationFile) -> Annotations:
        """Read one list of people."""
        file, pictures = source
        if file.suffix.lower() == ".mat":
            raise DataProblem(f"MPII annotations {file} are a MATLAB file, which is not read. {EXPECTED}")
        rows = read_json(file, what="MPII annotations", error=DataProblem, limit=MAX_FILE_BYTES)
        if not isinstance(rows, list) or not rows:
            what = "an empty list" if rows == [] else f"no list but a {type(rows).__name__}"
            raise DataProblem(f"MPII annotations {file} hold {what}. {EXPECTED}")
        return collect(
            rows, lambda row, index: (_person(row, index, pictures), None), file=file, skeleton=MPII
        )


@dataclass(frozen=True, kw_only=True)
class MpiiCrops(PersonCrops):
    """MPII Human Pose, 16 joints: `annot/train.json`, `annot/valid.json` and `images/`; crops of height x width."""

    path: Path
    width: int = 256

    @cached_property
    def source(self) -> Mpii:
        """The annotation files."""
        return Mpii(path=self.path)


def _person(row: Any, index: int, pictures: Path) -> Person:
    who = f"person {index}"
    if not isinstance(row, dict):
        raise DataProblem(f"{who} is {short(row)}. {EXPECTED}")
    missing = [key for key in FIELDS if key not in row]
    if missing:
        raise DataProblem(f"{who} has no {', '.join(missing)}. {EXPECTED}")
    joints = _joints(row["joints"], row["joints_vis"], who)
    return Person(
        id=f"{index:06d}",
        picture=picture_below(pictures, row["image"], who=who),
        box=_box(row["center"], row["scale"], who),
        joints=joints,
        head_size=_head_size(row.get("headbox"), joints, who),
    )


def _joints(places: Any, visible: Any, who: str) -> Joints:
    """Join places and visibility; the file counts pixels from 1, as MATLAB does."""
    if not isinstance(places, list) or not isinstance(visible, list) or len(places) != len(visible):
        raise DataProblem(
            f"{who} has joints {short(places)} and joints_vis {short(visible)}. Give {MPII.count} of each."
        )
    rows = [
        [*place, shown] if isinstance(place, list) else [place]
        for place, shown in zip(places, visible, strict=True)
    ]
    joints = check_joints(rows, MPII.count, who=who)
    joints[joints[:, 2] > 0, :2] -= 1
    return joints


def _box(centre: Any, scale: Any, who: str) -> Box:
    numbers = [number(value) for value in (*centre, scale)] if isinstance(centre, list) else []
    known = [value for value in numbers if value is not None]
    if len(numbers) != 3 or len(known) != 3:
        raise DataProblem(
            f"{who} has center {short(centre)} and scale {short(scale)}. Give [x, y] and a number."
        )
    x, y, size = known
    side = size * REFERENCE_HEIGHT_PIXELS
    half = (side - 1) / 2
    return check_box([x - 1 - half, y - 1 + CENTRE_SHIFT_PIXELS * size - half, side, side], who=who)


def _head_size(box: Any, joints: Joints, who: str) -> float | None:
    """Return the head size: from the head box (x1, y1, x2, y2) where given, else the distance of its two end joints."""
    if box is None:
        lower, upper = joints[list(MPII.head or ())]
        known = lower[2] > 0 and upper[2] > 0
        return float(np.hypot(*(upper[:2] - lower[:2]))) or None if known else None
    corners = [number(value) for value in box] if isinstance(box, list) else []
    known_corners = [value for value in corners if value is not None]
    if len(corners) != 4 or len(known_corners) != 4:
        raise DataProblem(f"{who} has headbox {short(box)}. Give four numbers: x1, y1, x2, y2.")
    left, top, right, bottom = known_corners
    return float(HEAD_SHARE_OF_DIAGONAL * np.hypot(right - left, bottom - top)) or None

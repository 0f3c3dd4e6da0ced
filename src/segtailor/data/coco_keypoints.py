"""COCO person keypoints (Lin et al., 2014): `person_keypoints_*.json`, 17 joints per person."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from segtailor.core.codec import read_json, short
from segtailor.core.errors import DataProblem
from segtailor.data.person_crops import (
    AnnotationFile,
    Annotations,
    FilePerson,
    PersonCrops,
    PersonFiles,
    collect,
)
from segtailor.tasks.pose.persons import Person, check_box, check_joints, number, picture_below
from segtailor.tasks.pose.skeletons import COCO, Skeleton

MAX_FILE_BYTES = 512 * 2**20  # the published training file has 240 million
PREFIX = "person_keypoints_"
FIELDS = ("image_id", "keypoints", "bbox")
EXPECTED = "Expected is the JSON of COCO person keypoints: an object with the lists images and annotations."
EXPECTED_BOXES = (
    "Expected is COCO's list of results: {image_id, category_id, bbox: [x, y, width, height], score}."
)
PERSON = 1  # category of people
TRAINED_SPLIT = "train"  # it has joints to learn in annotated boxes only
Rows: TypeAlias = dict[Any, dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class CocoKeypoints(PersonFiles):
    """COCO people: a folder with `annotations/person_keypoints_train2017.json`, `train2017/` and so on, or one file.

    `boxes` is a file of a detector, in COCO's form of results. Splits other than `train` whose pictures it names then
    consist of its boxes instead of the annotated ones; the people that they are compared with stay the same.
    """

    boxes: Path | None = None

    @property
    def skeleton(self) -> Skeleton:
        """Seventeen joints."""
        return COCO

    def find(self) -> Mapping[str, AnnotationFile]:
        """Find the annotation files; the name of a split is what follows the prefix, without the year."""
        if self.path.is_file():
            above = self.path.parent
            root = above.parent if above.name == "annotations" else above
            files = [self.path]
        else:
            root = self.path
            files = sorted({*root.glob(f"{PREFIX}*.json"), *root.glob(f"annotations/{PREFIX}*.json")})
        if not files:
            raise DataProblem(f"{root} has no annotations/{PREFIX}train2017.json or the like. {EXPECTED}")
        names = [file.stem.removeprefix(PREFIX) for file in files]
        return {
            name.rstrip("0123456789") or name: AnnotationFile(file, _pictures(root, name))
            for name, file in zip(names, files, strict=True)
        }

    def read(self, source: AnnotationFile) -> Annotations:
        """Read the people of one file."""
        file, pictures = source
        document = read_json(file, what="COCO keypoints", error=DataProblem, limit=MAX_FILE_BYTES)
        known = document if isinstance(document, dict) else {}
        images, rows = known.get("images"), known.get("annotations")
        if not isinstance(images, list) or not isinstance(rows, list) or not rows:
            raise DataProblem(f"COCO keypoints {file} have no annotations or no images. {EXPECTED}")
        listed = {one["id"]: one for one in images if isinstance(one, dict) and _is_id(one.get("id"))}
        found = collect(rows, lambda row, at: _person(row, at, listed, pictures), file=file, skeleton=COCO)
        return found._replace(pictures=_files(listed, pictures) if self.boxes is not None else {})

    def samples(self, split: str) -> Sequence[FilePerson]:
        """Return the boxes of the detector where it looked at this split, otherwise the annotated people."""
        found = self._detected(split)
        return super().samples(split) if found is None else found

    def detects(self, split: str) -> bool:
        """Tell whether the boxes of a split come from the detector."""
        return self._detected(split) is not None

    def _detected(self, split: str) -> Sequence[FilePerson] | None:
        if self.boxes is None or split == TRAINED_SPLIT:
            return None
        pictures = self._annotations(split).pictures
        found = [box for box in self._boxes if box.picture in pictures]
        if not found:
            return None
        return tuple(FilePerson(person=replace(box, picture=pictures[box.picture])) for box in found)

    @cached_property
    def _boxes(self) -> Sequence[Person]:
        """All boxes of people in the detector's file; `picture` is the id of the picture."""
        if self.boxes is None:
            return ()
        rows = read_json(self.boxes, what="boxes of a detector", error=DataProblem, limit=MAX_FILE_BYTES)
        if not isinstance(rows, list) or not rows:
            raise DataProblem(f"boxes {self.boxes} are no list of boxes. {EXPECTED_BOXES}")
        found = [_box(row, index, self.boxes) for index, row in enumerate(rows)]
        people = [box for box in found if box is not None]
        if not people:
            raise DataProblem(f"{self.boxes} has no box of a person (category 1). {EXPECTED_BOXES}")
        return people


@dataclass(frozen=True, kw_only=True)
class CocoCrops(PersonCrops):
    """COCO person keypoints, 17 joints: `annotations/person_keypoints_*.json` and the pictures.

    `boxes` is a file with a detector's boxes, by which splits other than `train` are scored.
    """

    path: Path
    boxes: Path | None = None

    @cached_property
    def source(self) -> CocoKeypoints:
        """The annotation files."""
        return CocoKeypoints(path=self.path, boxes=self.boxes)

    @property
    def annotated(self) -> CocoCrops:
        """The same people in their annotated boxes: what the dataset doctor examines."""
        return replace(self, boxes=None)


def _pictures(root: Path, name: str) -> Path:
    """Return the folder of a file's pictures: `train2017`, `images/train2017` or just `images`."""
    choices = (root / name, root / "images" / name, root / "images")
    return next((folder for folder in choices if folder.is_dir()), choices[0])


def _person(row: Any, index: int, images: Rows, pictures: Path) -> tuple[Person, tuple[float, float] | None]:
    """Return the person and, where the file has them, the height and width of the picture."""
    if not isinstance(row, dict):
        raise DataProblem(f"annotation number {index} is {short(row)}. {EXPECTED}")
    name = str(row["id"]) if _is_id(row.get("id")) else f"number {index}"
    who = f"annotation {name}"
    missing = [key for key in FIELDS if key not in row]
    if missing:
        raise DataProblem(f"{who} has no {', '.join(missing)}. Add what is missing.")
    if not _is_id(row["image_id"]) or row["image_id"] not in images:
        raise DataProblem(
            f"{who} is in picture {short(row['image_id'])}, which is not listed. Add it to images."
        )
    image = images[row["image_id"]]
    box = check_box(row["bbox"], who=who)
    area = number(row.get("area", box[2] * box[3]))
    if area is None or area <= 0:
        raise DataProblem(f"{who} has area {short(row['area'])}. Give its square pixels, more than 0.")
    person = Person(
        id=name,
        picture=picture_below(pictures, image.get("file_name"), who=who),
        box=box,
        joints=check_joints(_in_threes(row["keypoints"]), COCO.count, who=who),
        area=area,
        crowd=bool(row.get("iscrowd", 0)),
    )
    height, width = number(image.get("height")), number(image.get("width"))
    return person, None if height is None or width is None else (height, width)


def _files(images: Rows, folder: Path) -> dict[str, str]:
    """Return the file of each picture by its id, as text; pictures without a usable name are left out."""
    found = {}
    for name, image in images.items():
        with contextlib.suppress(DataProblem):
            found[str(name)] = picture_below(folder, image.get("file_name"), who=f"picture {name}")
    return found


def _box(row: Any, index: int, file: Path) -> Person | None:
    """Return a box of a detector as a person without joints; nothing for things that are no people, or empty boxes."""
    who = f"box number {index} of {file}"
    if not isinstance(row, dict) or not _is_id(row.get("image_id")):
        raise DataProblem(f"{who} is {short(row)}. {EXPECTED_BOXES}")
    if row.get("category_id", PERSON) != PERSON:
        return None
    score = number(row.get("score"))
    if score is None:
        raise DataProblem(f"{who} has score {short(row.get('score'))}. Give a number.")
    sides = row.get("bbox")
    if isinstance(sides, list) and len(sides) == 4 and min(number(side) or 0.0 for side in sides[2:]) <= 0:
        return None
    return Person(
        id=f"box {index}",
        picture=str(row["image_id"]),
        box=check_box(sides, who=who),
        joints=np.zeros((COCO.count, 3), np.float32),
        score=score,
    )


def _in_threes(flat: Any) -> Any:
    return [flat[at : at + 3] for at in range(0, len(flat), 3)] if isinstance(flat, list) else flat


def _is_id(value: Any) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool) and len(str(value)) <= 100

"""YOLO segmentation: `data.yaml` or `classes.txt`, and a text file per picture with one polygon per line.

A line is the number of a class, then x, y, x, y, ... as shares of the picture's width and height. A line with four
numbers is a box: centre, width and height.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from segtailor.core.codec import short
from segtailor.core.errors import DataProblem
from segtailor.data.annotations.dataset import AnnotatedDataset
from segtailor.data.annotations.reading import (
    WITH_WEBP,
    AnnotationReading,
    class_name,
    inside,
    points_of,
    shape_list,
)
from segtailor.data.annotations.shapes import (
    AnnotatedPicture,
    LabelPatch,
    LabelShape,
    Outlines,
    Points,
    ShapeFault,
    outlines,
)
from segtailor.data.files import list_pictures, read_text, read_yaml
from segtailor.data.legend import numbered_names
from segtailor.data.splits import COMMON_NAMES

MAX_LABEL_BYTES = 16 * 2**20  # of one text file
MAX_CLASSES = 1000  # a larger number is a mistake
CLASS_LISTS = ("classes.txt", "obj.names")
LAYOUTS = ("images/{}", "{}/images", "{}")


@dataclass(frozen=True, kw_only=True)
class RelativeOutline:
    """An outline in shares of the picture's width and height."""

    points: Outlines

    def patch(self, size: tuple[int, int]) -> LabelPatch:
        """Fill the outline at the size of the picture."""
        scale = np.array([size[1], size[0]], np.float64)
        return Outlines(rings=tuple(ring * scale for ring in self.points.rings)).patch(size)

    def content(self) -> bytes:
        """Coordinates."""
        return self.points.content()


@dataclass(frozen=True, kw_only=True)
class Yolo(AnnotatedDataset):
    """YOLO segmentation: a folder with `data.yaml` (or `classes.txt`), `images/` and `labels/`, or its YAML file."""

    def read(self) -> AnnotationReading:
        """Read the classes, then the text file of every picture; a picture without one is background."""
        reading = AnnotationReading(root=self.root)
        described = self._description(reading)
        names = self._class_names(described)
        folders = self._listed(described, reading) or self._found()
        pictures = {
            split: [path for place in places for path in self._pictures(place, reading)]
            for split, places in folders.items()
        }
        if not any(pictures.values()) and not reading.problems:
            raise DataProblem(
                f"{self.path} holds no pictures of YOLO: expected images/train beside labels/train."
            )
        used: set[int] = set()
        for split, images in pictures.items():
            for image in images:
                with reading.opening(label_file(image, self.root)):
                    self._read(image, split, names, used, reading)
        if not names:
            names = dict(enumerate(numbered_names(max(used, default=-1) + 1)))
            self._report_nameless(reading)
        reading.learn(names[number] for number in sorted(names))
        self._report_alone([path for images in pictures.values() for path in images], reading)
        return reading

    def _description(self, reading: AnnotationReading) -> dict[str, Any]:
        file = self.path if self.path.is_file() else yolo_file(self.path)
        if file is None:
            return {}
        with reading.opening(file):
            document = read_yaml(file, what="YOLO file")
            if not isinstance(document, dict):
                raise DataProblem(f"YOLO file {file} is no table; expected names, train and val")
            return document
        return {}

    def _class_names(self, described: Mapping[str, Any]) -> dict[int, str]:
        names = described.get("names")
        if isinstance(names, list):
            names = dict(enumerate(names))
        if isinstance(names, dict) and names:
            table = {}
            for key, name in names.items():
                if not str(key).isdecimal() or int(key) >= MAX_CLASSES:
                    raise DataProblem(
                        f"{self.path}: names has class number {short(key)}; expected 0, 1, 2, ..."
                    )
                try:
                    table[int(key)] = class_name(name)
                except DataProblem as problem:
                    raise DataProblem(f"{self.path}: names: {problem}; give each class one name.") from None
            return table
        listed = next((self.root / name for name in CLASS_LISTS if (self.root / name).is_file()), None)
        if listed is None:
            return {}
        lines = [line.strip() for line in read_text(listed, what="class list").splitlines()]
        return dict(enumerate(class_name(line) for line in lines if line))

    def _listed(self, described: Mapping[str, Any], reading: AnnotationReading) -> dict[str, list[Path]]:
        """Return the folders and list files of each split that the YAML file names and that exist."""
        found: dict[str, list[Path]] = {}
        for key, value in described.items():
            split = COMMON_NAMES.get(str(key).lower())
            if split is None or value is None:
                continue
            for text in value if isinstance(value, list) else [value]:
                place = self._place(text, described.get("path"))
                if place is not None:
                    found.setdefault(split, []).append(place)
                elif split != "test":  # test splits often come without pictures
                    reading.report(
                        "missing-image",
                        self.path,
                        f"{self.path}: {key}: {short(text)} is not below {self.root}",
                        "Correct the path; it starts from the folder of the YAML file.",
                        severity="warning",
                    )
        return found

    def _place(self, text: Any, base: Any) -> Path | None:
        """Return what a path stands for. Leading `..` are dropped if need be: exports count them from elsewhere."""
        if not isinstance(text, str) or "\0" in text or len(text) > 1000:
            return None
        parts = [
            part for part in PurePosixPath(text.replace("\\", "/")).parts if part not in ("..", ".", "/")
        ]
        choices = [self.root / text, self.root.joinpath(*parts)]
        if isinstance(base, str) and "\0" not in base:
            choices.insert(0, self.root / base / text)
        return next((place for place in choices if inside(place, self.root) and place.exists()), None)

    def _found(self) -> dict[str, list[Path]]:
        """Return the folders of each split by their usual names; all pictures where there are none."""
        found: dict[str, list[Path]] = {}
        for name, split in COMMON_NAMES.items():
            place = next(
                (
                    self.root / form.format(name)
                    for form in LAYOUTS
                    if (self.root / form.format(name)).is_dir()
                ),
                None,
            )
            if place is not None:
                found.setdefault(split, []).append(place)
        return found or {"": [self.root / "images" if (self.root / "images").is_dir() else self.root]}

    def _pictures(self, place: Path, reading: AnnotationReading) -> list[Path]:
        if place.is_dir():
            return list(list_pictures(place, WITH_WEBP))
        images = []
        for line in read_text(place, what="list").splitlines():
            if not line.strip():
                continue
            image = self._place(line.strip(), None)
            if image is None:
                reading.report(
                    "missing-image",
                    place,
                    f"{place} names {short(line.strip())}, which is not below {self.root}",
                    "Add the picture, or remove the line.",
                )
            else:
                images.append(image)
        return images

    def _read(
        self, image: Path, split: str, names: Mapping[int, str], used: set[int], reading: AnnotationReading
    ) -> None:
        file = label_file(image, self.root)
        lines = (
            read_text(file, what="YOLO labels", limit=MAX_LABEL_BYTES).splitlines() if file.exists() else []
        )
        shapes = [
            _shape(line, at, file, image, names, used, reading)
            for at, line in enumerate(lines, start=1)
            if line.strip()
        ]
        reading.add(AnnotatedPicture(image=image, file=file, split=split, shapes=shape_list(shapes)))

    def _report_nameless(self, reading: AnnotationReading) -> None:
        reading.report(
            "nameless",
            self.path,
            f"{self.path} has no data.yaml with names and no classes.txt; the classes are numbered",
            "Add a classes.txt with one name per line.",
            severity="warning",
        )

    def _report_alone(self, images: list[Path], reading: AnnotationReading) -> None:
        """Report text files without a picture in the folders of labels."""
        files = {label_file(image, self.root) for image in images}
        places = {
            file.parent for file in files if file.parent.name == "labels" or "labels" in file.parent.parts
        }
        for path in sorted(path for place in places if place.is_dir() for path in place.glob("*.txt")):
            if path not in files and path.name not in CLASS_LISTS:
                reading.report(
                    "annotation-without-image",
                    path,
                    f"{path} has no picture and is not used",
                    "Add the picture of the same name, or remove the file.",
                    severity="warning",
                )


def yolo_file(folder: Path) -> Path | None:
    """Return the YAML file that describes a dataset of YOLO: `data.yaml`, or the only one that has names."""
    choices = [folder / "data.yaml", folder / "data.yml", *sorted(folder.glob("*.y*ml"))]
    for path in choices:
        if path.is_file():
            try:
                document = read_yaml(path, what="YOLO file")
            except DataProblem:
                if path.stem == "data":
                    return path  # its reader explains the damage
                continue
            if isinstance(document, dict) and "names" in document:
                return path
    return None


def label_file(image: Path, root: Path) -> Path:
    """Return the text file of a picture: in `labels` instead of `images`, or beside it."""
    parts = list(image.relative_to(root).parts) if image.is_relative_to(root) else [image.name]
    for at in range(len(parts) - 2, -1, -1):
        if parts[at] == "images":
            parts[at] = "labels"
            return root.joinpath(*parts).with_suffix(".txt")
    beside = image.with_suffix(".txt")
    other = root / "labels" / Path(*parts).with_suffix(".txt")
    return other if other.is_file() and not beside.is_file() else beside


def _shape(
    line: str,
    at: int,
    file: Path,
    image: Path,
    names: Mapping[int, str],
    used: set[int],
    reading: AnnotationReading,
) -> LabelShape | None:
    who = f"line {at}"
    with reading.catching(file, who, image):
        cells = line.split()
        if not cells[0].isdecimal() or int(cells[0][:9]) >= MAX_CLASSES:
            raise DataProblem(f"it starts with {short(cells[0])} instead of the number of a class")
        number = int(cells[0])
        if names and number not in names:
            raise ShapeFault(
                "unknown-category", f"its class {number} is not among the {len(names)} declared ones"
            )
        used.add(number)
        points = _points(cells[1:])
        name = names[number] if names else numbered_names(number + 1)[number]
        return LabelShape(name=name, geometry=RelativeOutline(points=outlines([points])), who=who)
    return None


def _points(cells: list[str]) -> Points:
    if len(cells) == 4:
        (x, y), (wide, tall) = points_of(cells)
        if not (wide > 0 and tall > 0):
            raise ShapeFault("polygon", f"its box is {wide:g}x{tall:g}; both sides must be over 0")
        half = np.array([wide / 2, tall / 2])
        corners: Points = np.array([x, y]) + half * np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)])
        return corners
    points = points_of(cells)
    if len(points) and np.abs(points).max() > 2:
        raise ShapeFault("outside", "its coordinates are not shares of the picture between 0 and 1")
    return points

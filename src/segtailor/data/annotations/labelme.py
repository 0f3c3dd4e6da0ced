"""Labelme: one JSON file per picture, beside it; polygons, rectangles, circles and masks, drawn in the file's order."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from segtailor.core.codec import read_json, short
from segtailor.core.errors import DataProblem
from segtailor.data.annotations.dataset import AnnotatedDataset
from segtailor.data.annotations.reading import (
    AnnotationReading,
    class_name,
    inside,
    pairs_of,
    shape_list,
    split_of,
    stated_size,
)
from segtailor.data.annotations.shapes import (
    AnnotatedPicture,
    Ellipse,
    LabelShape,
    Points,
    ShapeFault,
    ShapeGeometry,
    Stamp,
    outlines,
    rectangle,
)
from segtailor.data.files import PICTURE_SUFFIXES, list_pictures, read_text

MAX_FILE_BYTES = 128 * 2**20  # files may hold their picture as text
LABEL_LIST = "labels.txt"
WITHOUT_AREA = ("line", "linestrip", "point", "points")


@dataclass(frozen=True, kw_only=True)
class Labelme(AnnotatedDataset):
    """Labelme: a folder of pictures with one JSON file each, or one such file.

    Classes are those of `labels.txt`, if there is one, otherwise all that occur, sorted by name.
    """

    def read(self) -> AnnotationReading:
        """Read every JSON file below the folder."""
        reading = AnnotationReading(root=self.root)
        files = [self.path] if self.path.is_file() else labelme_files(self.path)
        if not files:
            raise DataProblem(f"{self.path} holds no JSON files of Labelme; check the path.")
        for file in files:
            with reading.opening(file):
                self._read(file, reading)
        listed = self.root / LABEL_LIST
        if listed.is_file():
            self._check(reading, [line.strip() for line in read_text(listed, what="label list").splitlines()])
        else:
            reading.learn(sorted({shape.name for picture in reading.pictures for shape in picture.shapes}))
        self._report_unannotated(reading)
        return reading

    def _read(self, file: Path, reading: AnnotationReading) -> None:
        document = read_json(file, what="Labelme file", error=DataProblem, limit=MAX_FILE_BYTES)
        if not isinstance(document, dict) or not isinstance(document.get("shapes"), list):
            reading.report(
                "unused",
                file,
                f"{file} has no list of shapes, so it is no file of Labelme and is not used",
                "Move it away.",
                severity="warning",
            )
            return
        image = self._image(file, document.get("imagePath"))
        shapes = [
            self._shape(row, at, file, image, reading) for at, row in enumerate(document["shapes"], start=1)
        ]
        with reading.catching(file, "its size", image):
            reading.add(
                AnnotatedPicture(
                    image=image,
                    file=file,
                    split=split_of(file.relative_to(self.root).parts[:-1]) if file != self.path else "",
                    size=stated_size(document.get("imageHeight"), document.get("imageWidth")),
                    shapes=shape_list(shapes),
                )
            )

    def _image(self, file: Path, name: Any) -> Path:
        """Return the picture: where the file says, if that is below the root, otherwise beside it by name."""
        if not isinstance(name, str) or not name.strip() or "\0" in name or len(name) > 1000:
            raise DataProblem(
                f"Labelme file {file} has imagePath {short(name)}, which is not the name of a picture"
            )
        plain = name.replace("\\", "/")
        place = file.parent / plain
        if inside(place, self.root) and place.is_file():
            return Path(os.path.normpath(place))
        beside = file.parent / PurePosixPath(plain).name
        same = (file.with_suffix(suffix) for suffix in sorted(PICTURE_SUFFIXES))
        return beside if beside.is_file() else next((path for path in same if path.is_file()), beside)

    def _shape(
        self, row: Any, at: int, file: Path, image: Path, reading: AnnotationReading
    ) -> LabelShape | None:
        who = f"shape number {at}"
        with reading.catching(file, who, image):
            if not isinstance(row, dict):
                raise DataProblem(f"{short(row)} is no shape")
            kind = row.get("shape_type") or "polygon"
            if kind in WITHOUT_AREA:
                reading.leave_out(file, str(kind))
                return None
            name = class_name(row.get("label"))
            return LabelShape(name=name, geometry=_geometry(kind, pairs_of(row.get("points")), row), who=who)
        return None

    def _check(self, reading: AnnotationReading, lines: list[str]) -> None:
        """Take the classes of the list, and report shapes of others."""
        reading.learn(class_name(line) for line in lines if line)
        for picture in reading.pictures:
            for shape in picture.shapes:
                if shape.name not in reading.classes:
                    reading.report(
                        "unknown-category",
                        picture.file,
                        f"{picture.file}: {shape.who}: its class {short(shape.name)} is not in {LABEL_LIST}",
                        f"Correct the label, or add it to {LABEL_LIST}.",
                        image=picture.image,
                    )

    def _report_unannotated(self, reading: AnnotationReading) -> None:
        """Report pictures without a file: nobody has looked at them, so they are not taken for background."""
        if self.path.is_file():
            return
        used = {picture.image for picture in reading.pictures}
        alone = [path for path in list_pictures(self.root) if path not in used]
        if alone:
            reading.report(
                "unannotated",
                alone[0],
                f"{len(alone)} picture(s) have no annotation file and are not used, first {alone[0]}",
                "Annotate them; a file without shapes says that all is background.",
                severity="info",
            )


def labelme_files(folder: Path) -> list[Path]:
    """Return all JSON files below a folder."""
    return list(list_pictures(folder, {".json"}))


def _geometry(kind: Any, points: Points, row: dict[str, Any]) -> ShapeGeometry:
    if kind == "polygon" or (kind == "rectangle" and len(points) > 2):
        return outlines([points])
    if kind not in ("rectangle", "circle", "mask"):
        raise DataProblem(f"its shape_type {short(kind)} is not known")
    if len(points) != 2:
        raise ShapeFault("polygon", f"its {kind} has {len(points)} points instead of 2")
    low, high = points.min(0), points.max(0)
    if kind == "rectangle":
        return rectangle((float(low[0]), float(low[1])), float(high[0] - low[0]), float(high[1] - low[1]))
    if kind == "circle":
        radius = math.dist(points[0], points[1])
        if radius <= 0:
            raise ShapeFault("polygon", "its circle has no radius")
        return Ellipse(centre=(float(points[0, 0]), float(points[0, 1])), radii=(radius, radius))
    if not isinstance(row.get("mask"), str):
        raise ShapeFault("broken-mask", "it is a mask without pixels")
    return Stamp(text=row["mask"], corner=(round(float(low[1])), round(float(low[0]))))

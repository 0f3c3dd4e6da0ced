"""CVAT for images 1.1: one XML file with all pictures; polygons, boxes, ellipses and masks, drawn by `z_order`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from segtailor.core.errors import DataProblem
from segtailor.data.annotations.dataset import AnnotatedDataset
from segtailor.data.annotations.reading import (
    AnnotationReading,
    PictureIndex,
    class_name,
    known_class,
    number,
    pairs_of,
    split_of,
    stated_size,
    whole,
)
from segtailor.data.annotations.shapes import (
    AnnotatedPicture,
    Ellipse,
    LabelShape,
    Runs,
    ShapeFault,
    ShapeGeometry,
    check_points,
    outlines,
    rectangle,
)
from segtailor.data.annotations.xml import read_xml

AREAS = ("polygon", "box", "ellipse", "mask")
WITHOUT_AREA = ("polyline", "points", "cuboid", "skeleton")
LABEL = ("labels", "label", "name")  # the last parts of the path to a declared class


@dataclass(frozen=True, kw_only=True)
class Cvat(AnnotatedDataset):
    """CVAT for images 1.1: `annotations.xml` and `images/`, or one XML file."""

    def read(self) -> AnnotationReading:
        """Read `annotations.xml`, or every XML file in the folder."""
        reading = AnnotationReading(root=self.root)
        files = [self.path] if self.path.is_file() else cvat_files(self.path)
        if not files:
            raise DataProblem(f"{self.path} has no annotations.xml; export as 'CVAT for images 1.1'.")
        index = PictureIndex(self.root)
        for file in files:
            with reading.opening(file):
                handler = _Pictures(reading=reading, file=file, index=index)
                read_xml(file, handler, what="CVAT file")
                handler.finish()
        return reading


def cvat_files(folder: Path) -> list[Path]:
    """Return the XML files of a folder."""
    return sorted(path for path in folder.glob("*.xml") if path.is_file())


@dataclass(kw_only=True)
class _Pictures:
    """Collects the pictures of one file while it is read."""

    reading: AnnotationReading
    file: Path
    index: PictureIndex
    _declared: list[str] = field(default_factory=list)
    _used: set[str] = field(default_factory=set)
    _attributes: Mapping[str, str] | None = None  # of the picture that is being read
    _image: Path | None = None
    _shapes: list[LabelShape] = field(default_factory=list)
    _pictures: int = 0

    def start(self, path: tuple[str, ...], attributes: Mapping[str, str]) -> None:
        """Begin a picture, or take a shape."""
        if path[0] != "annotations":
            raise DataProblem(f"CVAT file {self.file} starts with <{path[0]}>, not with <annotations>")
        if path == ("annotations", "track"):
            raise DataProblem(
                f"CVAT file {self.file} is of 'CVAT for video'; export as 'CVAT for images 1.1'"
            )
        if path == ("annotations", "image"):
            self._pictures += 1
            self._attributes, self._image, self._shapes = attributes, None, []
            with self.reading.catching(self.file, f"image number {self._pictures}"):
                subset = attributes.get("subset", "")
                folders = [self.reading.root / "images" / subset, self.reading.root / "images"]
                self._image = self.index.find(attributes.get("name"), folders)
        elif path[:2] == ("annotations", "image") and len(path) == 3 and self._image is not None:
            self._take(path[2], attributes)

    def end(self, path: tuple[str, ...], text: str) -> None:
        """Finish a picture, or take the name of a class."""
        if path[-3:] == LABEL and path[1:2] == ("meta",):
            with self.reading.catching(self.file, "a label"):
                self._declared.append(class_name(text))
        elif path == ("annotations", "image") and self._image is not None and self._attributes is not None:
            stated = self._attributes
            with self.reading.catching(self.file, f"image number {self._pictures}", self._image):
                self.reading.add(
                    AnnotatedPicture(
                        image=self._image,
                        file=self.file,
                        split=split_of([stated.get("subset", self.file.stem)]),  # some tools write train.xml
                        size=stated_size(stated.get("height"), stated.get("width")),
                        shapes=tuple(self._shapes),
                    )
                )

    def finish(self) -> None:
        """Take over the classes: as declared, or those that occur."""
        self.reading.learn(self._declared or sorted(self._used))
        if not self._pictures:
            raise DataProblem(f"CVAT file {self.file} holds no images")

    def _take(self, kind: str, attributes: Mapping[str, str]) -> None:
        if kind not in AREAS:
            if kind in WITHOUT_AREA:
                self.reading.leave_out(self.file, kind)
            return
        who = f"{kind} number {len(self._shapes) + 1}"
        with self.reading.catching(self.file, who, self._image):
            label = attributes.get("label")
            name = known_class(label, self._declared) if self._declared else class_name(label)
            self._used.add(name)
            order = whole(attributes.get("z_order", "0"), "its z_order")
            self._shapes.append(
                LabelShape(name=name, geometry=_geometry(kind, attributes), order=order, who=who)
            )


def _geometry(kind: str, attributes: Mapping[str, str]) -> ShapeGeometry:
    def value(name: str) -> float:
        return number(attributes.get(name), f"its {name}")

    turn = number(attributes.get("rotation", "0"), "its rotation")
    if kind == "polygon":
        text = attributes.get("points", "")
        check_points(text.count(";") + 1)  # before memory is taken for them
        pairs = [pair.split(",") for pair in text.split(";") if pair.strip()]
        return outlines([pairs_of(pairs)])
    if kind == "ellipse":
        radii = value("rx"), value("ry")
        if min(radii) <= 0:
            raise ShapeFault("polygon", f"its ellipse has radii {radii[0]:g} and {radii[1]:g}")
        return Ellipse(centre=(value("cx"), value("cy")), radii=radii, degrees=turn)
    if kind == "box":
        return _turned_box((value("xtl"), value("ytl")), (value("xbr"), value("ybr")), turn)
    size = whole(attributes.get("height"), "its height"), whole(attributes.get("width"), "its width")
    cells = [cell for cell in attributes.get("rle", "").replace(" ", "").split(",") if cell]
    if not all(cell.isdecimal() and len(cell) < 12 for cell in cells):
        raise ShapeFault("broken-rle", "its RLE holds something else than numbers")
    corner = whole(attributes.get("top"), "its top"), whole(attributes.get("left"), "its left")
    return Runs(counts=tuple(int(cell) for cell in cells), size=size, box=corner)


def _turned_box(low: tuple[float, float], high: tuple[float, float], degrees: float) -> ShapeGeometry:
    """Return a box turned clockwise around its centre."""
    wide, tall = high[0] - low[0], high[1] - low[1]
    angle = math.radians(degrees)
    across, down = -wide / 2, -tall / 2
    corner = (
        (low[0] + high[0]) / 2 + across * math.cos(angle) - down * math.sin(angle),
        (low[1] + high[1]) / 2 + across * math.sin(angle) + down * math.cos(angle),
    )
    return rectangle(corner, wide, tall, degrees)

"""Label Studio's JSON export: polygons, rectangles, ellipses and brushes, coordinates in percent of the picture."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np

from segtailor.core.codec import read_json, short
from segtailor.core.errors import DataProblem
from segtailor.data.annotations.dataset import AnnotatedDataset
from segtailor.data.annotations.reading import (
    MAX_JSON_BYTES,
    AnnotationReading,
    PictureIndex,
    class_name,
    number,
    pairs_of,
    shape_list,
    split_of,
    stated_size,
)
from segtailor.data.annotations.shapes import (
    AnnotatedPicture,
    Brush,
    Ellipse,
    LabelShape,
    ShapeFault,
    ShapeGeometry,
    outlines,
    rectangle,
)
from segtailor.data.files import MAX_PIXELS

UPLOAD = re.compile(r"[0-9a-f]{8}-(.+)")  # uploads get a prefix
AREAS = ("polygon", "rectangle", "ellipse", "brush")
EXPECTED = "expected is the export 'JSON': a list of tasks with data and annotations"


@dataclass(frozen=True, kw_only=True)
class LabelStudio(AnnotatedDataset):
    """Label Studio: the export 'JSON' (not 'JSON-MIN') and the pictures, in a folder, or the file itself.

    Classes are all that occur, sorted by name. Of several annotations of one picture the one marked as ground truth is
    taken, otherwise the first that was not cancelled.
    """

    def read(self) -> AnnotationReading:
        """Read every JSON file in the folder."""
        reading = AnnotationReading(root=self.root)
        files = [self.path] if self.path.is_file() else sorted(self.path.glob("*.json"))
        if not files:
            raise DataProblem(f"{self.path} holds no JSON file; {EXPECTED}.")
        index = PictureIndex(self.root)
        for file in files:
            with reading.opening(file):
                tasks = read_json(file, what="Label Studio file", error=DataProblem, limit=MAX_JSON_BYTES)
                if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
                    raise DataProblem(f"Label Studio file {file} is no list of tasks; {EXPECTED}")
                if tasks and not any("annotations" in task for task in tasks):
                    raise DataProblem(f"Label Studio file {file} holds no annotations; {EXPECTED}")
                for at, task in enumerate(tasks, start=1):
                    who = f"task {task.get('id', f'number {at}')}"
                    with reading.catching(file, who):
                        _read_task(task, who, file, index, reading)
        reading.learn(sorted({shape.name for picture in reading.pictures for shape in picture.shapes}))
        return reading


def _read_task(
    task: Mapping[str, Any], who: str, file: Path, index: PictureIndex, reading: AnnotationReading
) -> None:
    image = _image(task, index)
    results = _results(task)
    if results is None:
        reading.report(
            "unannotated",
            file,
            f"{file}: {who} ({image.name}) has no finished annotation and is not used",
            "Annotate it; a submitted annotation without regions says that all is background.",
            severity="info",
        )
        return
    labels = {
        str(row.get("id")): row["value"]["labels"]
        for row in results
        if row.get("type") == "labels" and isinstance(row.get("value"), dict) and "labels" in row["value"]
    }
    shapes = [_shape(row, at, file, image, labels, reading) for at, row in enumerate(results, start=1)]
    sizes = {
        stated_size(row["original_height"], row["original_width"])
        for row in results
        if "original_height" in row and "original_width" in row
    } - {None}
    if len(sizes) > 1:
        raise DataProblem(
            "its regions state different sizes of the picture (original_height, original_width)"
        )
    size = next(iter(sizes), None)
    place = image.relative_to(reading.root) if image.is_relative_to(reading.root) else Path()
    reading.add(
        AnnotatedPicture(
            image=image, file=file, split=split_of(place.parts[:-1]), size=size, shapes=shape_list(shapes)
        )
    )


def _results(task: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the regions of the annotation that counts; nothing where there is none."""
    rows = task.get("annotations")
    finished = [
        row
        for row in (rows if isinstance(rows, list) else ())
        if isinstance(row, dict) and isinstance(row.get("result"), list) and not row.get("was_cancelled")
    ]
    if not finished:
        return None
    chosen = next((row for row in finished if row.get("ground_truth")), finished[0])
    return [row for row in chosen["result"] if isinstance(row, dict)]


def _image(task: Mapping[str, Any], index: PictureIndex) -> Path:
    """Return the picture of a task: its address leads to a server, so the name is what counts."""
    data = task.get("data")
    links = [value for value in data.values() if isinstance(value, str)] if isinstance(data, dict) else []
    if isinstance(data, dict) and isinstance(data.get("image"), str):
        links.insert(0, data["image"])
    if isinstance(task.get("file_upload"), str):
        links.append(task["file_upload"])
    wanted: Path | None = None
    for link in links:
        try:
            address = urlsplit(link[:2000])
        except ValueError:  # brackets that are no address
            continue
        local = parse_qs(address.query).get("d", [])
        for path in (*local, unquote(address.path)):
            parts = [part for part in PurePosixPath(path.replace("\\", "/")).parts if part not in ("/", "..")]
            upload = UPLOAD.fullmatch(parts[-1]) if parts else None
            for name in ("/".join(parts), parts[-1] if parts else "", upload[1] if upload else ""):
                if name:
                    found = index.find(name, [index.root / "images"])
                    if found.is_file():
                        return found
                    wanted = wanted or index.root / PurePosixPath(name).name
    if wanted is None:
        raise DataProblem(f"its data {short(data)} name no picture")
    return wanted


def _shape(
    row: Mapping[str, Any],
    at: int,
    file: Path,
    image: Path,
    labels: Mapping[Any, Any],
    reading: AnnotationReading,
) -> LabelShape | None:
    kind = str(row.get("type", ""))
    form = kind.removesuffix("labels")
    who = f"region number {at}"
    if kind == "labels":
        return None
    if form not in AREAS:
        reading.leave_out(file, kind[:40] or "regions without a type")
        return None
    with reading.catching(file, who, image):
        value = row.get("value")
        if not isinstance(value, dict):
            raise DataProblem(f"its value is {short(value)}")
        names = value.get(kind) or value.get("labels") or labels.get(str(row.get("id")))
        if not isinstance(names, list) or not names:
            raise ShapeFault("unknown-category", "it has no label")
        if row.get("image_rotation"):
            raise DataProblem(
                "its picture was turned in Label Studio; turn the file itself, and annotate it again"
            )
        size = stated_size(row.get("original_height"), row.get("original_width"))
        if size is None or size[0] * size[1] > MAX_PIXELS:
            raise DataProblem("it has no usable original_height and original_width")
        return LabelShape(name=class_name(names[0]), geometry=_geometry(form, value, size), who=who)
    return None


def _geometry(form: str, value: Mapping[str, Any], size: tuple[int, int]) -> ShapeGeometry:
    tall, wide = size[0] / 100, size[1] / 100  # pixels per percent

    def percent(name: str) -> float:
        return number(value.get(name), f"its {name}", most=1e5)

    if form == "brush":
        data = value.get("rle")
        if not isinstance(data, list) or not all(type(byte) is int and 0 <= byte < 256 for byte in data):
            raise ShapeFault("broken-rle", "its brush has no rle of bytes")
        return Brush(data=bytes(data), size=size)
    if form == "polygon":
        return outlines([pairs_of(value.get("points")) * np.array([wide, tall])])
    turn = number(value.get("rotation", 0), "its rotation", most=1e5)
    corner = percent("x") * wide, percent("y") * tall
    if form == "rectangle":
        return rectangle(corner, percent("width") * wide, percent("height") * tall, turn)
    radii = percent("radiusX") * wide, percent("radiusY") * tall
    if min(radii) <= 0:
        raise ShapeFault("polygon", f"its ellipse has radii {radii[0]:g} and {radii[1]:g}")
    return Ellipse(centre=corner, radii=radii, degrees=turn)

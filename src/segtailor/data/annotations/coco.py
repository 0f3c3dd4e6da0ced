"""COCO (Lin et al., 2014): instances as polygons and RLE, and panoptic PNGs (Kirillov et al., 2019)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from segtailor.core.codec import read_json, short
from segtailor.core.errors import DataProblem
from segtailor.data.annotations.dataset import AnnotatedDataset
from segtailor.data.annotations.reading import (
    MAX_JSON_BYTES,
    AnnotationReading,
    PictureIndex,
    class_name,
    points_of,
    split_of,
    stated_size,
    whole,
)
from segtailor.data.annotations.shapes import (
    AnnotatedPicture,
    LabelShape,
    Runs,
    SegmentMap,
    ShapeFault,
    ShapeGeometry,
    outlines,
)

PLACES = ("*.json", "annotations/*.json", "*/*.json")
OTHER_FILES = ("person_keypoints_", "captions_", "image_info_")  # of COCO, without areas
CROWD_ORDER = -1  # crowds are coarse regions: single objects are drawn over them
MANY_CROWDS_SHARE = 0.2  # of all annotations; COCO has 1 %, so they are a tool's mark of an RLE
CROWD_NAME = "__ignore__"  # of crowds that do not count; one of `dataset.IGNORED_NAMES`
EXPECTED = "expected is COCO's JSON: an object with the lists images, annotations and categories"


@dataclass(frozen=True, kw_only=True)
class Coco(AnnotatedDataset):
    """COCO instances or panoptic: `annotations/instances_train.json` and the pictures, or one JSON file.

    `form` chooses between `instances` and `panoptic` where a folder has both; `crowd=ignore` leaves pixels of crowds
    (`iscrowd`) out of training and scores, `crowd=object` draws them in the order of the file.
    """

    form: Literal["instances", "panoptic"] | None = None
    crowd: Literal["label", "ignore", "object"] = "label"

    @property
    def root(self) -> Path:
        """The folder above `annotations`."""
        if self.path.is_dir():
            return self.path
        above = self.path.parent
        return above.parent if above.name == "annotations" else above

    def read(self) -> AnnotationReading:
        """Read every file of the chosen form."""
        reading = AnnotationReading(root=self.root)
        files = [self.path] if self.path.is_file() else coco_files(self.path, self.form)
        if not files:
            raise DataProblem(f"{self.path} has no annotations/instances_train.json or the like; {EXPECTED}.")
        index = PictureIndex(self.root)
        for file in files:
            with reading.opening(file):
                _FileReader(reading=reading, file=file, index=index, crowd=self.crowd).read()
        return reading


def coco_files(folder: Path, form: str | None = None) -> list[Path]:
    """Return the JSON files of one form below a folder: `instances_*` if there are any, `panoptic_*`, or all others."""
    found = sorted({path for place in PLACES for path in folder.glob(place) if path.is_file()})
    found = [path for path in found if not path.name.startswith((".", *OTHER_FILES))]
    for prefix in ("instances", "panoptic") if form is None else (form,):
        chosen = [path for path in found if path.name.startswith(prefix)]
        if chosen:
            return chosen
    return found


@dataclass(frozen=True, kw_only=True)
class _FileReader:
    reading: AnnotationReading
    file: Path
    index: PictureIndex
    crowd: Literal["label", "ignore", "object"]

    def read(self) -> None:
        document = read_json(self.file, what="COCO file", error=DataProblem, limit=MAX_JSON_BYTES)
        known = document if isinstance(document, dict) else {}
        tables = [known.get(key) for key in ("images", "annotations", "categories")]
        if not all(isinstance(table, list) for table in tables):
            raise DataProblem(f"COCO file {self.file} lacks images, annotations or categories; {EXPECTED}")
        images, rows, categories = tables
        names = self._names(categories)
        self.reading.learn(names.values())
        by_image = self._by_image(images, rows)
        self._question_crowds([row for listed in by_image.values() for row in listed])
        panoptic = any(isinstance(row, dict) and "segments_info" in row for row in rows or ())
        if panoptic:
            self.reading.unlabelled = "ignore"
        seen: set[Any] = set()
        for at, image in enumerate(images or ()):
            with self.reading.catching(self.file, f"image number {at}"):
                if not isinstance(image, dict) or not _is_id(image.get("id")):
                    raise DataProblem(f"{short(image)} has no id")
                if image["id"] in seen:
                    raise DataProblem(f"id {image['id']} is that of an earlier image")
                seen.add(image["id"])
                self._picture(image, by_image, names, panoptic=panoptic)

    def _names(self, categories: Any) -> dict[Any, str]:
        """Return the classes by id, in the order of their ids: these may have gaps."""
        names: dict[Any, str] = {}
        for at, row in enumerate(categories):
            with self.reading.catching(self.file, f"category number {at}"):
                if not isinstance(row, dict) or not _is_id(row.get("id")):
                    raise DataProblem(f"{short(row)} has no id")
                name = class_name(row.get("name"))
                if names.setdefault(row["id"], name) != name:
                    raise DataProblem(f"id {row['id']} is both {names[row['id']]!a} and {name!a}")
        return dict(sorted(names.items(), key=lambda item: (isinstance(item[0], str), item[0])))

    def _by_image(self, images: Any, rows: Any) -> dict[Any, list[dict[str, Any]]]:
        """Return the annotations of each image; those of no image are reported."""
        table: dict[Any, list[dict[str, Any]]] = {
            one["id"]: [] for one in images if isinstance(one, dict) and _is_id(one.get("id"))
        }
        strays = []
        for at, row in enumerate(rows):
            owner = row.get("image_id") if isinstance(row, dict) else None
            if isinstance(row, dict) and _is_id(owner) and owner in table:
                table[owner].append(row)
            else:
                strays.append((at, row, owner))
        for at, row, owner in strays:
            self.reading.report(
                "annotation-without-image",
                self.file,
                f"{self.file}: {_who(row, at)} belongs to image {short(owner)}, which is not listed; it is not used",
                "Add the image to the list, or remove the annotation.",
                severity="error"
                if len(strays) == len(rows)
                else "warning",  # all: ids of another kind, or file
            )
        return table

    def _question_crowds(self, rows: list[dict[str, Any]]) -> None:
        """Report marks that can hardly mean crowds: some tools give one to every RLE."""
        crowds = sum(map(_is_crowd, rows))
        if self.crowd == "object" or not MANY_CROWDS_SHARE * len(rows) < crowds < len(rows):
            return
        self.reading.report(
            "many-crowds",
            self.file,
            f"{self.file}: {crowds} of {len(rows)} annotations are marked as crowds (iscrowd), which are drawn below "
            "single objects; some tools mark every RLE so",
            "If they are single objects, give the option crowd=object.",
            severity="warning",
        )

    def _picture(
        self,
        row: dict[str, Any],
        by_image: Mapping[Any, list[dict[str, Any]]],
        names: Mapping[Any, str],
        *,
        panoptic: bool,
    ) -> None:
        image = self.index.find(row.get("file_name"), self._folders(), anywhere=False)
        picture = partial(
            AnnotatedPicture,
            image=image,
            file=self.file,
            split=self._split,
            size=stated_size(row.get("height"), row.get("width")),
        )
        rows = by_image[row["id"]]
        if not panoptic:
            shapes = [self._shape(one, at, image, names) for at, one in enumerate(rows)]
            self.reading.add(picture(shapes=tuple(shape for shape in shapes if shape is not None)))
        elif rows:
            with self.reading.catching(self.file, _who(rows[0], 0), image):
                if len(rows) > 1:
                    raise DataProblem(
                        f"its image has {len(rows)} annotations; panoptic ones are one per image"
                    )
                self.reading.add(picture(segments=self._segments(rows[0], image, names)))
        else:
            self.reading.report(
                "unannotated",
                self.file,
                f"{self.file} lists {image} without segments; it is not used",
                "Annotate it, or remove it from the list.",
                severity="warning",
            )

    def _shape(
        self, row: dict[str, Any], at: int, image: Path, names: Mapping[Any, str]
    ) -> LabelShape | None:
        who = _who(row, at)
        with self.reading.catching(self.file, who, image):
            name = self._class(row, names)
            geometry = _geometry(row.get("segmentation"))
            crowd = _is_crowd(row)
            if geometry is None:
                self.reading.leave_out(self.file, "boxes without a polygon or RLE")
                return None
            if crowd and self.crowd == "ignore":
                name = CROWD_NAME
            below = crowd and self.crowd != "object"
            return LabelShape(name=name, geometry=geometry, order=CROWD_ORDER if below else 0, who=who)
        return None

    def _segments(self, row: dict[str, Any], image: Path, names: Mapping[Any, str]) -> SegmentMap:
        infos = row.get("segments_info")
        if not isinstance(infos, list):
            raise DataProblem("it has no list segments_info")
        classes: dict[int, str] = {}
        for one in infos:
            if not isinstance(one, dict) or not _is_id(one.get("id")) or isinstance(one["id"], str):
                raise DataProblem(f"segment {short(one)} has no id")
            name = self._class(one, names)
            classes[int(one["id"])] = CROWD_NAME if _is_crowd(one) and self.crowd == "ignore" else name
        folders = [
            self.file.with_suffix(""),
            self.reading.root / self.file.stem,
            self.reading.root / "annotations" / self.file.stem,
            self.file.parent,
        ]
        file = self.index.find(row.get("file_name", f"{image.stem}.png"), folders, anywhere=False)
        if not file.is_file():
            raise ShapeFault("missing-mask", f"its segments {file} do not exist")
        return SegmentMap(file=file, classes=classes)

    def _class(self, row: Mapping[str, Any], names: Mapping[Any, str]) -> str:
        number = row.get("category_id")
        if not _is_id(number) or number not in names:
            raise ShapeFault(
                "unknown-category", f"its category {short(number)} is not in the list categories"
            )
        return names[number]

    @property
    def _split(self) -> str:
        return split_of(re.findall(r"[a-z]+", self.file.stem.lower())) or split_of([self.file.parent.name])

    def _folders(self) -> list[Path]:
        """Return where pictures may lie: `train2017`, `images/train2017`, `images/train`, `images`, beside the file."""
        root, name = self.reading.root, self.file.stem.rpartition("_")[2]
        places = [root / name, root / "images" / name]
        if self._split:
            places += [root / "images" / self._split, root / self._split]
        return [*places, root / "images", self.file.parent]


def _geometry(value: Any) -> ShapeGeometry | None:
    """Return the place of an annotation; nothing where it has a box alone."""
    if value is None or value == []:
        return None
    if isinstance(value, dict):
        size, counts = value.get("size"), value.get("counts")
        if not isinstance(size, list) or len(size) != 2:
            raise ShapeFault("rle-size", f"its RLE has size {short(size)} instead of [height, width]")
        both = whole(size[0], "the height of its RLE"), whole(size[1], "the width of its RLE")
        if isinstance(counts, str):
            return Runs(counts=counts, size=both)
        if isinstance(counts, list) and all(type(count) is int and abs(count) < 2**40 for count in counts):
            return Runs(counts=tuple(counts), size=both)
        raise ShapeFault(
            "broken-rle", f"its RLE has counts {short(counts)}; expected a list of numbers, or text"
        )
    if isinstance(value, list) and all(isinstance(part, list) for part in value):
        return outlines([points_of(part) for part in value])
    raise DataProblem(f"its segmentation is {short(value)}; expected a list of polygons or an RLE")


def _who(row: Any, at: int) -> str:
    known = isinstance(row, dict) and _is_id(row.get("id"))
    return f"annotation {row['id']}" if known else f"annotation number {at}"


def _is_crowd(row: Mapping[str, Any]) -> bool:
    return str(row.get("iscrowd") or 0).lower() not in ("0", "0.0", "false")  # some tools write text


def _is_id(value: Any) -> bool:
    """Tell whether a value can be an id: text, or a whole number, for which some tools write 3.0; it equals 3."""
    whole_number = isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0
    return (whole_number or isinstance(value, str)) and len(str(value)) <= 100

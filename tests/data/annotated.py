"""One synthetic scene, and how it is written in every annotation format: from known masks, by code of its own."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pycocotools import mask as oracle

from tests.data.trees import write, write_image

SIZE = (24, 40)  # height, width
NAMES = {3: "road", 7: "car", 90: "tree", 5: "sign"}  # ids with gaps
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Thing:
    name: str
    mask: Mask


def scene(seed: int) -> list[Thing]:
    """Return objects in drawing order: a box, an overlapping blob, a ring with a hole, and one of two parts."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[: SIZE[0], : SIZE[1]]
    dx, dy = rng.integers(-3, 4, 2)
    road = (y >= 12) & (y < 22) & (x >= 2) & (x < 38)
    car = (abs(x - 20 - dx) + abs(y - 13 - dy) < 7) & (rng.random(SIZE) > 0.02)
    ring = (x - 9) ** 2 + (y - 8) ** 2
    tree = (ring < 40) & (ring > 6)
    sign = ((x - 33) ** 2 < 6) & (((y - 5) ** 2 < 6) | ((y - 16) ** 2 < 5))
    return [Thing("road", road), Thing("car", car), Thing("tree", tree), Thing("sign", sign)]


PICTURES: dict[str, list[Thing]] = {**{f"p{number}": scene(number) for number in range(5)}, "empty": []}


def expected(name: str, classes: Sequence[str], unlabelled: int = 0) -> NDArray[np.uint8]:
    labels = np.full(SIZE, unlabelled, np.uint8)
    for thing in PICTURES[name]:
        labels[thing.mask] = classes.index(thing.name)
    return labels


def loops(mask: Mask) -> list[list[tuple[int, int]]]:
    """Return the borders of a mask along the edges of its pixels, as closed loops of corners (x, y)."""
    padded = np.pad(mask, 1)
    nexts: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for y, x in zip(*np.nonzero(mask), strict=True):
        row, column = int(y), int(x)
        around = (
            (padded[row, column + 1], (column, row), (column + 1, row)),
            (padded[row + 1, column + 2], (column + 1, row), (column + 1, row + 1)),
            (padded[row + 2, column + 1], (column + 1, row + 1), (column, row + 1)),
            (padded[row + 1, column], (column, row + 1), (column, row)),
        )
        for neighbour, start, end in around:
            if not neighbour:
                nexts.setdefault(start, []).append(end)
    found = []
    while nexts:
        start = next(iter(nexts))
        loop, here = [start], nexts[start].pop()
        while here != start:
            loop.append(here)
            here = nexts[here].pop()
        found.append(loop)
        nexts = {corner: ends for corner, ends in nexts.items() if ends}
    return found


def one_ring(mask: Mask) -> list[tuple[int, int]]:
    """Return all loops as one outline: bridges that are walked there and back enclose nothing."""
    first, *others = loops(mask)
    ring = [*first, first[0]]
    for loop in others:
        ring += [*loop, loop[0], first[0]]
    return ring


def flat(points: Sequence[tuple[float, float]]) -> list[float]:
    return [value for point in points for value in point]


def counts_by_rows(mask: Mask) -> list[int]:
    values = np.concatenate([[False], mask.ravel(), [not mask.ravel()[-1]]])
    ends = np.flatnonzero(values[1:] != values[:-1])
    return [int(run) for run in np.diff(np.concatenate([[0], ends]))]


def box_of(mask: Mask) -> tuple[int, int, int, int]:
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return int(rows[0]), int(rows[-1]) + 1, int(columns[0]), int(columns[-1]) + 1


def write_pictures(folder: Path, names: Sequence[str] = tuple(PICTURES)) -> None:
    for name in names:
        write_image(folder / f"{name}.png", SIZE)


def coco_segmentation(mask: Mask, form: str) -> Any:
    if form == "polygon":
        return [flat(one_ring(mask))]
    encoded = oracle.encode(np.asfortranarray(mask.astype(np.uint8)))
    if form == "text":
        return {"size": list(SIZE), "counts": encoded["counts"].decode()}
    return {"size": list(SIZE), "counts": counts_by_rows(mask.T)}


def coco_document(names: Sequence[str], form: str = "polygon") -> dict[str, Any]:
    ids = {name: number for number, name in NAMES.items()}
    rows = []
    for image, name in enumerate(names):
        for thing in PICTURES[name]:
            rows.append(
                {
                    "id": len(rows) + 1,
                    "image_id": image + 10,
                    "category_id": ids[thing.name],
                    "segmentation": coco_segmentation(thing.mask, form),
                    "iscrowd": int(form != "polygon" and thing.name == "road"),
                }
            )
    return {
        "images": [
            {"id": image + 10, "file_name": f"{name}.png", "height": SIZE[0], "width": SIZE[1]}
            for image, name in enumerate(names)
        ],
        "annotations": rows,
        "categories": [{"id": number, "name": name} for number, name in NAMES.items()],
    }


def write_json(path: Path, document: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path


def write_coco(root: Path, form: str = "polygon") -> None:
    for split, names in (("train", ["p0", "p1", "p2", "empty"]), ("val", ["p3", "p4"])):
        write_pictures(root / "images" / split, names)
        write_json(root / "annotations" / f"instances_{split}2017.json", coco_document(names, form))


def write_panoptic(root: Path) -> None:
    ids = {name: number for number, name in NAMES.items()}
    names = list(PICTURES)
    write_pictures(root / "images", names)
    rows = []
    for image, name in enumerate(names):
        segments = np.zeros((*SIZE, 3), np.uint8)
        infos = []
        for at, thing in enumerate(PICTURES[name], start=1):
            number = 1000 * at + 7
            segments[thing.mask] = (number % 256, number // 256 % 256, number // 65536)
            infos.append({"id": number, "category_id": ids[thing.name], "iscrowd": 0})
        write(root / "annotations" / "panoptic_all" / f"{name}.png", segments)
        rows.append({"image_id": image, "file_name": f"{name}.png", "segments_info": infos})
    document = {
        "images": [{"id": image, "file_name": f"{name}.png"} for image, name in enumerate(names)],
        "annotations": rows,
        "categories": [{"id": number, "name": name, "isthing": 1} for number, name in NAMES.items()],
    }
    write_json(root / "annotations" / "panoptic_all.json", document)


def cvat_shape(thing: Thing, order: int) -> str:
    name = quoteattr(thing.name)
    if thing.name == "road":
        top, bottom, left, right = box_of(thing.mask)
        return f'<box label={name} xtl="{left}" ytl="{top}" xbr="{right}" ybr="{bottom}" z_order="{order}"/>'
    if thing.name == "sign":
        top, bottom, left, right = box_of(thing.mask)
        runs = ", ".join(map(str, counts_by_rows(thing.mask[top:bottom, left:right])))
        place = f'left="{left}" top="{top}" width="{right - left}" height="{bottom - top}"'
        return f'<mask label={name} rle="{runs}" {place} z_order="{order}"/>'
    points = ";".join(f"{x:.2f},{y:.2f}" for x, y in one_ring(thing.mask))
    return f'<polygon label={name} points="{points}" z_order="{order}"/>'


def cvat_text(names: Sequence[str] = tuple(PICTURES)) -> str:
    labels = "".join(f"<label><name>{name}</name><color>#aa00ff</color></label>" for name in NAMES.values())
    images = ""
    for at, name in enumerate(names):
        things = [cvat_shape(thing, order) for order, thing in enumerate(PICTURES[name])]
        shapes = "".join(reversed(things))  # z_order counts, not the order in the file
        images += f'<image id="{at}" name="{name}.png" width="{SIZE[1]}" height="{SIZE[0]}">{shapes}'
        images += '<polyline label="road" points="1,1;5,5"/></image>'
    return (
        f"<?xml version='1.0' encoding='utf-8'?><annotations><version>1.1</version>"
        f"<meta><task><labels>{labels}</labels></task></meta>{images}</annotations>"
    )


def write_cvat(root: Path) -> None:
    write_pictures(root / "images")
    (root / "annotations.xml").write_text(cvat_text())


def labelme_document(name: str) -> dict[str, Any]:
    shapes: list[dict[str, Any]] = []
    for thing in PICTURES[name]:
        top, bottom, left, right = box_of(thing.mask)
        if thing.name == "road":
            shapes.append(
                {"label": "road", "shape_type": "rectangle", "points": [[right, bottom], [left, top]]}
            )
        elif thing.name == "sign":
            stream = BytesIO()
            Image.fromarray(thing.mask[top:bottom, left:right]).save(stream, "PNG")
            text = base64.b64encode(stream.getvalue()).decode()
            corners = [[left, top], [right - 1, bottom - 1]]
            shapes.append({"label": "sign", "shape_type": "mask", "points": corners, "mask": text})
        else:
            points = [list(point) for point in one_ring(thing.mask)]
            shapes.append({"label": thing.name, "shape_type": "polygon", "points": points})
    shapes.append({"label": "road", "shape_type": "linestrip", "points": [[1, 1], [5, 5]]})
    return {
        "version": "5.4.1",
        "shapes": shapes,
        "imagePath": f"{name}.png",
        "imageData": None,
        "imageHeight": SIZE[0],
        "imageWidth": SIZE[1],
    }


def write_labelme(root: Path) -> None:
    write_pictures(root)
    for name in PICTURES:
        write_json(root / f"{name}.json", labelme_document(name))


def yolo_line(number: int, mask: Mask) -> str:
    shares = [f"{x / SIZE[1]:.6f} {y / SIZE[0]:.6f}" for x, y in one_ring(mask)]
    return f"{number} {' '.join(shares)}"


def write_yolo(root: Path) -> None:
    names = list(NAMES.values())
    for split, pictures in (("train", ["p0", "p1", "p2", "empty"]), ("val", ["p3", "p4"])):
        write_pictures(root / "images" / split, pictures)
        for picture in pictures:
            path = root / "labels" / split / f"{picture}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = [yolo_line(names.index(thing.name), thing.mask) for thing in PICTURES[picture]]
            if lines:  # a picture without a file is background
                path.write_text("\n".join(lines) + "\n")
    table = "\n".join(f"  {number}: {name}" for number, name in enumerate(names))
    (root / "data.yaml").write_text(f"train: images/train\nval: images/val\nnames:\n{table}\n")


def brush(mask: Mask) -> list[int]:
    """Encode a mask as Label Studio does: four channels per pixel, a bit stream of runs."""
    values = np.repeat(mask.ravel().astype(np.uint8) * 255, 4)
    widths = (3, 4, 8, 16)
    bits = f"{len(values):032b}{8 - 1:05b}" + "".join(f"{width - 1:04b}" for width in widths)
    at = 0
    while at < len(values):
        other = np.flatnonzero(values[at:] != values[at])
        run = min(int(other[0]) if len(other) else len(values) - at, 2**16)
        which = next(index for index, width in enumerate(widths) if run <= 2**width)
        bits += f"1{which:02b}{run - 1:0{widths[which]}b}{values[at]:08b}"
        at += run
        if run == 4 and at + 4 <= len(values):  # four values one by one
            bits += f"000{3:03b}" + "".join(f"{value:08b}" for value in values[at : at + 4])
            at += 4
    bits += "0" * (-len(bits) % 8)
    return [int(bits[place : place + 8], 2) for place in range(0, len(bits), 8)]


def studio_region(thing: Thing, at: int) -> dict[str, Any]:
    height, width = SIZE
    top, bottom, left, right = box_of(thing.mask)
    if thing.name == "road":
        kind = "rectanglelabels"
        value: dict[str, Any] = {
            "x": 100 * left / width,
            "y": 100 * top / height,
            "width": 100 * (right - left) / width,
            "height": 100 * (bottom - top) / height,
            "rotation": 0,
        }
    elif thing.name == "car":
        kind = "polygonlabels"
        value = {"points": [[100 * x / width, 100 * y / height] for x, y in one_ring(thing.mask)]}
    else:
        kind = "brushlabels"
        value = {"format": "rle", "rle": brush(thing.mask)}
    sizes = {"original_width": width, "original_height": height, "image_rotation": 0}
    return {"id": f"r{at}", "type": kind, **sizes, "value": {**value, kind: [thing.name]}}


def studio_tasks() -> list[dict[str, Any]]:
    return [
        {
            "id": at,
            "annotations": [
                {"was_cancelled": True, "result": [{"type": "junk"}]},
                {"result": [studio_region(thing, number) for number, thing in enumerate(PICTURES[name])]},
            ],
            "data": {"image": f"/data/upload/1/0a1b2c3d-{name}.png"},
        }
        for at, name in enumerate(PICTURES)
    ]


def write_label_studio(root: Path) -> None:
    write_pictures(root / "images")
    write_json(root / "export.json", studio_tasks())


FORMATS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "coco polygons": ("coco", write_coco),
    "coco rle text": ("coco", lambda root: write_coco(root, "text")),
    "coco rle counts": ("coco", lambda root: write_coco(root, "counts")),
    "coco panoptic": ("coco", write_panoptic),
    "cvat": ("cvat", write_cvat),
    "labelme": ("labelme", write_labelme),
    "yolo": ("yolo", write_yolo),
    "label studio": ("labelstudio", write_label_studio),
}

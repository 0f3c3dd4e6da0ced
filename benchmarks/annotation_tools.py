"""Write one scene with annotation tools themselves, and read it with segtailor: what comes back of the masks?

python annotation_tools.py write /tmp/tools                # in an environment with the tools, without segtailor
python -m benchmarks.annotation_tools compare /tmp/tools   # in segtailor's environment

`write` needs datumaro, supervision, labelme, label-studio-sdk, sahi and pycocotools; a tool that is not installed is
left out with a line that says so. The scene has objects over each other, one with a hole and one of two parts, a crowd,
a picture without annotations, and names with spaces.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIZE = (96, 144)  # height, width
CLASSES = ("road", "traffic sign", "car", "tree", "person")
IDS = (3, 5, 7, 90, 11)  # of categories, with gaps; where a tool keeps the ids that it is given
SPLITS = {"train": ("street 1", "street 2", "night/street 3", "empty"), "val": ("yard 1", "yard 2")}
BACKGROUND = 0  # in true masks; class k is k + 1
Mask = NDArray[np.bool_]
Writer = Callable[[Path], str]  # writes into a folder; returns how the folder is named for segtailor


@dataclass(frozen=True)
class Thing:
    """One object: its class, its pixels, its outline where it has one, and whether it is a crowd."""

    label: int
    mask: Mask
    crowd: bool = False


def names() -> list[tuple[str, str]]:
    """Return split and name of each picture."""
    return [(split, name) for split, listed in SPLITS.items() for name in listed]


def things(name: str) -> list[Thing]:
    """Return the objects of a picture in drawing order."""
    if name == "empty":
        return []
    rng = np.random.default_rng([ord(letter) for letter in name])
    y, x = np.mgrid[: SIZE[0], : SIZE[1]]
    dx, dy = rng.integers(-6, 7, 2)
    ring = (x - 30 - dx) ** 2 + (y - 24) ** 2
    left, right = ((x - shift) ** 2 + (y - 20 - dy) ** 2 < 90 for shift in (100, 126))
    return [
        Thing(0, (y >= 50) & (y < 90) & (x >= 4) & (x < 140)),
        Thing(2, np.abs(x - 70 - dx) + 2 * np.abs(y - 56 - dy) < 34),
        Thing(2, (x >= 90) & (x < 120) & (y >= 52) & (y < 70)),
        Thing(3, (ring < 400) & (ring > 60)),
        Thing(1, left | right),
        Thing(4, (x - 80 - dx) ** 2 + 0.3 * (y - 60) ** 2 < 60),
        Thing(4, (x >= 8) & (x < 30) & (y >= 62) & (y < 80) & ((x + y) % 7 > 0), crowd=True),
    ]


def truth(name: str, *, crowds: bool = False) -> NDArray[np.uint8]:
    """Return the mask as the drawing order says; where the form knows `crowds`, they lie below single objects."""
    labels = np.zeros(SIZE, np.uint8)
    for thing in sorted(things(name), key=lambda thing: crowds and not thing.crowd):
        labels[thing.mask] = thing.label + 1
    return labels


def photo(name: str) -> NDArray[np.uint8]:
    """Return a picture: noise, so that no two are equal."""
    rng = np.random.default_rng([1, *(ord(letter) for letter in name)])
    return rng.integers(0, 256, (*SIZE, 3), dtype=np.uint8)


def write_photos(folder: Path, split: str) -> list[Path]:
    """Write the pictures of a split below a folder."""
    paths = []
    for name in SPLITS[split]:
        path = folder / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photo(name)).save(path)
        paths.append(path)
    return paths


# --- Datumaro ---------------------------------------------------------------------------------------------------------


def datumaro_set(*, polygons: bool = False, semantic: bool = False) -> Any:
    """Return the scene as a dataset of Datumaro: masks, polygons made of them, or masks without overlaps."""
    dm = importlib.import_module("datumaro")
    items = []
    for split, name in names():
        found = []
        for number, thing in enumerate(things(name)):
            mask = (truth(name) == thing.label + 1) & thing.mask if semantic else thing.mask
            found.append(
                dm.Mask(mask, label=thing.label + semantic, id=number + 1, group=number + 1, z_order=number)
            )
        media = dm.Image.from_numpy(data=photo(name)[:, :, ::-1].copy(), ext=".png")
        items.append(dm.DatasetItem(id=name, subset=split, media=media, annotations=found))
    categories: Any = list(CLASSES)
    if semantic:
        labels = dm.LabelCategories.from_iterable(["background", *CLASSES])
        colours = {0: (0, 0, 0), **{number + 1: (40 * number, 200, 10) for number in range(len(CLASSES))}}
        categories = {dm.AnnotationType.label: labels, dm.AnnotationType.mask: dm.MaskCategories(colours)}
    made = dm.Dataset.from_iterable(items, categories=categories)
    return made.transform("masks_to_polygons") if polygons else made


def datumaro(form: str, *, read_as: str = "folder", polygons: bool = False, **options: Any) -> Writer:
    """Return what writes the scene by one exporter of Datumaro."""

    def write(out: Path) -> str:
        semantic = form in ("voc_segmentation", "cityscapes", "camvid", "coco_panoptic", "kitti_segmentation")
        made = datumaro_set(polygons=polygons, semantic=semantic)
        made.export(str(out), form, save_media=True, **options)
        return read_as

    return write


# --- supervision ------------------------------------------------------------------------------------------------------


def supervision_set(split: str, photos: Path) -> Any:
    """Return one split as a dataset of supervision."""
    sv = importlib.import_module("supervision")
    paths = write_photos(photos, split)
    found = {}
    for path, name in zip(paths, SPLITS[split], strict=True):
        listed = things(name)
        if not listed:
            found[str(path)] = sv.Detections.empty()
            continue
        masks = np.stack([thing.mask for thing in listed])
        found[str(path)] = sv.Detections(
            xyxy=sv.mask_to_xyxy(masks), mask=masks, class_id=np.array([thing.label for thing in listed])
        )
    return sv.DetectionDataset(classes=list(CLASSES), images=[str(path) for path in paths], annotations=found)


def supervision_coco(out: Path) -> str:
    """COCO by supervision."""
    for split in SPLITS:
        made = supervision_set(split, out.parent / f"{out.name} photos")
        made.as_coco(str(out / "images" / split), str(out / "annotations" / f"instances_{split}.json"))
    return "folder?crowd=object"  # it marks every RLE as a crowd


def supervision_yolo(out: Path) -> str:
    """YOLO by supervision."""
    for split in SPLITS:
        made = supervision_set(split, out.parent / f"{out.name} photos")
        folder = out / split
        made.as_yolo(str(folder / "images"), str(folder / "labels"), str(out / "data.yaml"))
    return "folder"


def supervision_labelme(out: Path) -> str:
    """Labelme files by supervision."""
    for split in SPLITS:
        made = supervision_set(split, out.parent / f"{out.name} photos")
        made.as_labelme(str(out / split), str(out / split))
    return "labelme"


# --- Labelme ----------------------------------------------------------------------------------------------------------


def labelme_masks(out: Path) -> str:
    """Labelme's own file writer, with masks as its assistant makes them."""
    utils = importlib.import_module("labelme.utils")
    writer = importlib.import_module("labelme._label_file").LabelFile()
    for split in SPLITS:
        for path, name in zip(write_photos(out / split, split), SPLITS[split], strict=True):
            shapes = [labelme_mask(thing, utils) for thing in things(name)]
            writer.save(
                filename=str(path.with_suffix(".json")), shapes=shapes, image_path=path.name,
                image_height=SIZE[0], image_width=SIZE[1], image_data=None, flags={},
            )  # fmt: skip
    return "labelme"


def labelme_mask(thing: Thing, utils: Any) -> dict[str, Any]:
    """Return a shape as Labelme stores masks: a box that includes its last corner, and the pixels in it."""
    rows, columns = np.nonzero(thing.mask)
    top, left, bottom, right = (int(side) for side in (rows.min(), columns.min(), rows.max(), columns.max()))
    part = thing.mask[top : bottom + 1, left : right + 1]
    return {
        "label": CLASSES[thing.label], "points": [[left, top], [right, bottom]], "group_id": None,
        "description": "", "shape_type": "mask", "flags": {}, "mask": utils.img_arr_to_b64(part.astype(np.uint8)),
    }  # fmt: skip


# --- Label Studio -----------------------------------------------------------------------------------------------------


def brush_tasks(out: Path, *, prefixed: bool = False) -> Path:
    """Write tasks with brushes by Label Studio's encoder, and return the file."""
    brush = importlib.import_module("label_studio_sdk.converter.brush")
    tasks = []
    for split, name in names():
        results = []
        for number, thing in enumerate(things(name)):
            rle = [int(byte) for byte in brush.mask2rle(thing.mask.astype(np.uint8) * 255)]
            results.append(
                {
                    "id": f"region{number}", "type": "brushlabels", "from_name": "tag", "to_name": "image",
                    "origin": "manual", "image_rotation": 0, "original_width": SIZE[1], "original_height": SIZE[0],
                    "value": {"rle": rle, "format": "rle", "brushlabels": [CLASSES[thing.label]]},
                }
            )  # fmt: skip
        link = f"/data/upload/1/{len(tasks):08x}-{name.replace('/', '_').replace(' ', '_')}.png"
        path = out / "images" / split / (Path(link).name if prefixed else Path(link).name.partition("-")[2])
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photo(name)).save(path)
        annotation = {"id": len(tasks), "was_cancelled": False, "ground_truth": False, "result": results,
                      "completed_by": 1, "created_at": "2024-01-01T00:00:00Z"}  # fmt: skip
        tasks.append({"id": len(tasks) + 1, "data": {"image": link}, "annotations": [annotation]})
    file = out / "project.json"
    file.write_text(json.dumps(tasks))
    return file


def label_studio_json(out: Path) -> str:
    """Label Studio's JSON with brushes of its encoder."""
    brush_tasks(out)
    return "folder"


def label_studio_converted(form: str) -> Writer:
    """Return what converts the tasks by Label Studio's converter."""
    config = "<View><Image name='image' value='$image'/><BrushLabels name='tag' toName='image'>{}</BrushLabels></View>"

    def write(out: Path) -> str:
        source = out.parent / f"{out.name} source"
        source.mkdir()
        file = brush_tasks(source, prefixed=True)
        module = importlib.import_module("label_studio_sdk.converter.converter")
        text = config.format("".join(f"<Label value='{name}'/>" for name in CLASSES))
        converter = module.Converter(config=text, project_dir=None, upload_dir=str(source / "images"))
        images = out / "images"
        images.mkdir(parents=True)
        for path in sorted(source.glob("images/*/*.png")):
            shutil.copy(path, images / path.name)
        converter.convert(str(file), str(out), form, is_dir=False, image_dir=str(images))
        return "folder"

    return write


# --- pycocotools, sahi ------------------------------------------------------------------------------------------------


def coco_by_hand(compressed: bool) -> Writer:
    """Return what writes COCO as scripts do: a JSON file whose masks are pycocotools' RLE, and ids with gaps."""

    def write(out: Path) -> str:
        tool = importlib.import_module("pycocotools.mask")
        for split in SPLITS:
            write_photos(out / split, split)
            images, rows = [], []
            for number, name in enumerate(SPLITS[split]):
                images.append(
                    {"id": 10 * number, "file_name": f"{name}.png", "height": SIZE[0], "width": SIZE[1]}
                )
                for thing in things(name):
                    rle = tool.encode(np.asfortranarray(thing.mask.astype(np.uint8)))
                    box, area = [float(side) for side in tool.toBbox(rle)], float(tool.area(rle))
                    counts = rle["counts"].decode() if compressed else runs(thing.mask)
                    rows.append(
                        {
                            "id": len(rows) + 1, "image_id": 10 * number, "category_id": IDS[thing.label],
                            "bbox": box, "area": area, "iscrowd": int(thing.crowd),
                            "segmentation": {"size": list(SIZE), "counts": counts},
                        }
                    )  # fmt: skip
            categories = [{"id": key, "name": name} for key, name in zip(IDS, CLASSES, strict=True)]
            file = out / "annotations" / f"instances_{split}.json"
            file.parent.mkdir(exist_ok=True)
            file.write_text(json.dumps({"images": images, "annotations": rows, "categories": categories}))
        return "folder"

    return write


def runs(mask: Mask) -> list[int]:
    """Return the plain runs of a mask by columns, starting with zeros."""
    flat = mask.T.ravel()
    borders = np.flatnonzero(np.diff(flat)) + 1
    counts = np.diff(np.concatenate([[0], borders, [flat.size]])).tolist()
    return [0, *counts] if flat[0] else counts


def sahi_coco(out: Path) -> str:
    """COCO by sahi."""
    module = importlib.import_module("sahi.utils.coco")
    for split in SPLITS:
        made = module.Coco()
        for key, name in zip(IDS, CLASSES, strict=True):
            made.add_category(module.CocoCategory(id=key, name=name))
        write_photos(out / split, split)
        for name in SPLITS[split]:
            image = module.CocoImage(file_name=f"{name}.png", height=SIZE[0], width=SIZE[1])
            for thing in things(name):
                annotation = importlib.import_module("sahi.annotation").ObjectAnnotation.from_bool_mask
                outline = annotation(thing.mask, category_id=IDS[thing.label], full_shape=list(SIZE)).mask
                image.add_annotation(
                    module.CocoAnnotation(
                        segmentation=outline.segmentation, category_id=IDS[thing.label],
                        category_name=CLASSES[thing.label],
                    )
                )  # fmt: skip
            made.add_image(image)
        file = out / "annotations" / f"instances_{split}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(made.json))
    return "folder"


CASES: dict[tuple[str, str], Writer] = {
    ("datumaro", "COCO instances, masks"): datumaro("coco_instances"),
    ("datumaro", "COCO instances, polygons"): datumaro("coco_instances", polygons=True),
    ("datumaro", "COCO panoptic"): datumaro("coco_panoptic"),
    ("datumaro", "CVAT, masks"): datumaro("cvat"),
    ("datumaro", "CVAT, polygons"): datumaro("cvat", polygons=True),
    ("datumaro", "YOLO Ultralytics"): datumaro("yolo_ultralytics", polygons=True),
    ("datumaro", "Pascal VOC"): datumaro("voc_segmentation", label_map="source", read_as="folder?skip=empty"),
    ("datumaro", "Cityscapes"): datumaro(
        "cityscapes", label_map="source", read_as="folder?skip=empty_leftImg8bit"
    ),
    ("datumaro", "CamVid"): datumaro("camvid", label_map="source", read_as="folder?skip=empty"),
    ("datumaro", "KITTI"): datumaro("kitti_segmentation", label_map="source", read_as="folder?skip=empty"),
    ("datumaro", "LabelMe (XML)"): datumaro("label_me", polygons=True),
    ("supervision", "COCO"): supervision_coco,
    ("supervision", "YOLO"): supervision_yolo,
    ("supervision", "Labelme"): supervision_labelme,
    ("labelme", "Labelme, masks"): labelme_masks,
    ("label-studio-sdk", "JSON, brushes"): label_studio_json,
    ("label-studio-sdk", "COCO of brushes"): label_studio_converted("BRUSH_TO_COCO"),
    ("label-studio-sdk", "PNG of brushes"): label_studio_converted("BRUSH_TO_PNG"),
    ("sahi", "COCO"): sahi_coco,
    ("pycocotools", "COCO, RLE as text"): coco_by_hand(True),
    ("pycocotools", "COCO, RLE as numbers"): coco_by_hand(False),
}


def write_all(out: Path) -> None:
    """Write every case into a folder of its own, and a list of them."""
    listed = []
    for (tool, form), writer in CASES.items():
        folder = out / f"{tool} {form}".replace(",", "").replace("'", "")
        try:
            version = importlib.metadata.version(tool)
            folder.mkdir(parents=True)
            read_as = writer(folder)
        except Exception as problem:  # noqa: BLE001 - of a tool: the others are still of use
            print(f"{tool}, {form}: not written: {type(problem).__name__}: {problem}", file=sys.stderr)
            listed.append(
                {"tool": tool, "form": form, "problem": f"{type(problem).__name__}: {problem}"[:200]}
            )
            continue
        listed.append(
            {"tool": tool, "version": version, "form": form, "folder": folder.name, "read_as": read_as}
        )
    (out / "cases.json").write_text(json.dumps(listed, indent=1))


def compare_all(out: Path) -> None:
    """Read and convert every case, and print a table: the share of pixels that differ from the truth."""
    from segtailor.core.errors import UserError

    print("| tool | format | read as | pictures | pixels that differ | most in one picture |")
    print("|---|---|---|---|---:|---:|")
    for case in json.loads((out / "cases.json").read_text()):
        who = f"| {case['tool']} {case.get('version', '')} | {case['form']} |"
        if "problem" in case:
            print(f"{who} not written: {case['problem']} | | | |")
            continue
        try:
            kind, _, options = case["read_as"].partition("?")
            place = f"{kind}:{out / case['folder']}?{options}".rstrip("?")
            print(f"{who} {compared(place, crowds=case['tool'] == 'pycocotools')} |")
        except UserError as problem:
            print(f"{who} {type(problem).__name__}: {problem} | | | |")


def compared(place: str, *, crowds: bool) -> str:
    """Return the cells of one case."""
    from segtailor.data.convert import convert, plan_conversion
    from segtailor.data.doctor import check
    from segtailor.data.locate import locate

    dataset = locate(place)
    found = [finding for finding in check(dataset).findings if finding.severity != "info"]
    for finding in found:
        print(f"    {finding.severity} {finding.kind}: {finding.message} [{finding.file}]", file=sys.stderr)
    known = {plain(name): name for _, name in names()}
    shares = []
    for split in dataset.splits:
        for sample in dataset.samples(split):
            stem = plain(sample.name)
            match = next(name for key, name in known.items() if stem.endswith(key))
            labels = sample.read().labels
            # Unlabelled is either the background or not counted; in a true mask both are 0.
            table = np.zeros(256, np.uint8)
            for label, name in enumerate(dataset.task.classes):
                table[label] = CLASSES.index(name) + 1 if name in CLASSES else 0
            shares.append(float((table[labels] != truth(match, crowds=crowds)).mean()))
    with tempfile.TemporaryDirectory() as folder:
        convert(plan_conversion(dataset, Path(folder, "plain")))
        again = locate(f"folder:{folder}/plain")
        for split in dataset.splits:
            old, new = (one.samples(split) for one in (dataset, again))
            by_name = {plain(sample.name): sample.read().labels for sample in new}
            assert all((by_name[plain(sample.name)] == sample.read().labels).all() for sample in old), place
    kind = type(dataset).__name__
    splits = "+".join(f"{len(dataset.samples(split))} {split}" for split in dataset.splits)
    return f"{kind} | {splits} | {100 * np.mean(shares):.2f} % | {100 * max(shares):.2f} %"


def plain(name: str) -> str:
    """Return the end of a name, which all tools keep: some know neither spaces nor folders."""
    return Path(name).name.replace(" ", "_").rpartition("night_")[2]


def main() -> None:
    """Write or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("write", "compare"))
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    (write_all if given.what == "write" else compare_all)(given.folder)


if __name__ == "__main__":
    main()

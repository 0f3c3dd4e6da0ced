"""Faults of annotation files: the doctor names all at once; training and conversion stop with one line."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from segtailor.core.errors import DataProblem
from segtailor.data.doctor import Diagnosis, examine
from segtailor.data.locate import locate
from segtailor.verbs.main import run
from tests.data import annotated
from tests.data.annotated import FORMATS, SIZE
from tests.data.test_doctor_at_once import cut
from tests.data.trees import write_image

TEXT = {"size": list(SIZE), "counts": "PPYo0"}
ENTITIES = "<!DOCTYPE a [<!ENTITY b 'c'>]>"
CVAT_OUTSIDE = 'ytl="92" xbr="38" ybr="99"'
FAR = [[900.0, 900, 950, 900, 950, 950]]


def told(diagnosis: Diagnosis) -> set[str]:
    return {f"{found.kind} {Path(found.file).name}" for found in diagnosis.findings}


def changed(path: Path, change: Callable[[Any], None]) -> Path:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    return path


def test_every_fault_of_a_coco_set_is_told_at_once(tmp_path: Path) -> None:
    annotated.write_coco(tmp_path)
    images = tmp_path / "images"
    for name in ("q0", "q1", "q2"):
        write_image(images / "train" / f"{name}.png", (10, 10) if name == "q0" else SIZE)
    cut(images / "train" / "q1.png")
    (images / "train" / "q2.png").write_text("no picture")
    shutil.copy(images / "train" / "p0.png", images / "val" / "p4.png")  # a leak between the splits

    def spoil(document: dict[str, Any]) -> None:
        rows = document["annotations"]
        parts: list[Any] = [
            [[1, 1, 5, 5]],
            FAR,
            [[-9, 2, 9, 2, 9, 9, -9, 9]],
            TEXT,
            {**TEXT, "size": [5, 5]},
            {"size": list(SIZE), "counts": [5, -3]},
            {"size": [2**40, 2**40], "counts": [1]},
            "junk",
            [[1, 2, 3, 4, 5]],
            [[1, 2, 3, 4, 5, float("nan")]],
        ]
        for at, part in enumerate(parts):
            rows.append({"id": 100 + at, "image_id": 10, "category_id": 7, "segmentation": part})
        rows.append({"id": 200, "image_id": 10, "category_id": 8, "segmentation": [[1, 1, 5, 1, 5, 5]]})
        rows.append({"id": 201, "image_id": 999, "category_id": 7, "segmentation": [[1, 1, 5, 1, 5, 5]]})
        rows.append("no row")
        sizes = {"height": SIZE[0], "width": SIZE[1]}
        document["images"] += [
            {"id": 50 + at, "file_name": f"{name}.png", **sizes}
            for at, name in enumerate(("q0", "q1", "q2", "gone"))
        ]

    file = changed(tmp_path / "annotations" / "instances_train2017.json", spoil)
    diagnosis = examine(lambda: locate(f"coco:{tmp_path}"))
    found = told(diagnosis)
    for line in (
        f"polygon {file.name}",
        f"outside {file.name}",
        f"broken-rle {file.name}",
        f"rle-size {file.name}",
        f"annotation {file.name}",
        f"unknown-category {file.name}",
        f"annotation-without-image {file.name}",
        f"missing-image {file.name}",
        f"size-mismatch {file.name}",
        "unreadable q1.png",
        "unreadable q2.png",
        "duplicate p4.png",
    ):
        assert line in found, line
    messages = [finding.message for finding in diagnosis.findings]
    for number in (*range(100, 110), 200, 201):
        assert any(f"annotation {number} " in f"{text} ".replace(":", " ") for text in messages), number
    outside = {one.severity for one in diagnosis.findings if one.kind == "outside"}
    assert outside == {"error", "warning"}  # wholly, and in part
    assert all(finding.message and finding.fix for finding in diagnosis.findings)
    with pytest.raises(DataProblem, match=r"instances_train2017\.json"):
        locate(f"coco:{tmp_path}").samples("val")


def test_pictures_with_faults_can_be_skipped_by_name(tmp_path: Path) -> None:
    annotated.write_coco(tmp_path)

    def spoil(document: dict[str, Any]) -> None:
        document["annotations"][0]["segmentation"] = [[1, 1, 5, 5]]

    changed(tmp_path / "annotations" / "instances_val2017.json", spoil)
    (tmp_path / "images" / "train" / "p1.png").unlink()
    with pytest.raises(DataProblem, match="p1"):
        locate(f"coco:{tmp_path}").samples("train")
    names = "images/val/p3,images/train/p1"
    diagnosis = examine(lambda: locate(f"coco:{tmp_path}?skip={names}"))
    assert diagnosis.ok, diagnosis.errors
    assert len(locate(f"coco:{tmp_path}?skip={names}").samples("val")) == 1


Spoil = Callable[[Path], Path]


def coco_row(change: dict[str, Any]) -> Spoil:
    def spoil(root: Path) -> Path:
        def apply(document: dict[str, Any]) -> None:
            document["annotations"][0].update(change)

        return changed(root / "annotations" / "instances_val2017.json", apply)

    return spoil


def replaced(name: str, old: str, new: str) -> Spoil:
    def spoil(root: Path) -> Path:
        path = root / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))
        return path

    return spoil


def halved(name: str) -> Spoil:
    def spoil(root: Path) -> Path:
        cut(root / name)
        return root / name

    return spoil


def removed(name: str) -> Spoil:
    def spoil(root: Path) -> Path:
        (root / name).unlink()
        return root / name

    return spoil


def shape(change: dict[str, Any]) -> Spoil:
    def spoil(root: Path) -> Path:
        return changed(root / "p1.json", lambda document: document["shapes"][1].update(change))

    return spoil


def region(at: int, change: dict[str, Any]) -> Spoil:
    def spoil(root: Path) -> Path:
        def apply(tasks: Any) -> None:
            tasks[0]["annotations"][1]["result"][at]["value"].update(change)

        return changed(root / "export.json", apply)

    return spoil


def repainted(root: Path) -> Path:
    path = root / "annotations" / "panoptic_all" / "p1.png"
    Image.fromarray(np.full((*SIZE, 3), 77, np.uint8)).save(path)
    return path


def resized(root: Path) -> Path:
    path = root / "annotations" / "panoptic_all" / "p1.png"
    Image.fromarray(np.zeros((5, 6, 3), np.uint8)).save(path)
    return path


BAD: list[tuple[str, str, str, Spoil]] = [
    ("coco polygons", "malformed", "cut off", halved("annotations/instances_val2017.json")),
    ("coco polygons", "unknown-category", "unknown category", coco_row({"category_id": 4})),
    ("coco polygons", "polygon", "two points", coco_row({"segmentation": [[1, 1, 5, 5]]})),
    ("coco polygons", "outside", "outside", coco_row({"segmentation": FAR})),
    ("coco rle text", "broken-rle", "broken", coco_row({"segmentation": TEXT})),
    ("coco rle text", "rle-size", "other size", coco_row({"segmentation": {**TEXT, "size": [9, 9]}})),
    ("coco panoptic", "missing-mask", "PNG missing", removed("annotations/panoptic_all/p1.png")),
    ("coco panoptic", "missing-image", "picture missing", removed("images/p1.png")),
    ("coco panoptic", "unknown-segment", "unknown segment", repainted),
    ("coco panoptic", "size-mismatch", "other size", resized),
    ("coco panoptic", "unreadable", "cut PNG", halved("annotations/panoptic_all/p1.png")),
    ("cvat", "malformed", "cut off", halved("annotations.xml")),
    ("cvat", "malformed", "entities", replaced("annotations.xml", "<annotations>", f"{ENTITIES}<annotations>")),
    ("cvat", "malformed", "a video", replaced("annotations.xml", "<meta>", "<track/><meta>")),
    ("cvat", "unknown-category", "unknown label", replaced("annotations.xml", 'box label="road"', 'box label="raod"')),
    ("cvat", "broken-rle", "broken RLE", replaced("annotations.xml", 'rle="', 'rle="7, ')),
    ("cvat", "annotation", "a word for a number", replaced("annotations.xml", 'xtl="2"', 'xtl="two"')),
    ("cvat", "outside", "box outside", replaced("annotations.xml", 'ytl="12" xbr="38" ybr="22"', CVAT_OUTSIDE)),
    ("cvat", "missing-image", "picture missing", removed("images/p1.png")),
    ("labelme", "malformed", "cut off", halved("p1.json")),
    ("labelme", "polygon", "two points", shape({"points": [[1, 1], [2, 2]]})),
    ("labelme", "annotation", "no pair", shape({"points": [[1, 1, 1]]})),
    ("labelme", "annotation", "unknown kind", shape({"shape_type": "spline"})),
    ("labelme", "broken-mask", "broken mask", shape({"shape_type": "mask", "points": [[1, 1], [4, 4]], "mask": "A"})),
    ("labelme", "missing-image", "picture missing", removed("p1.png")),
    ("labelme", "size-mismatch", "other size", replaced("p1.json", '"imageHeight": 24', '"imageHeight": 25')),
    ("yolo", "unknown-category", "unknown class", replaced("labels/train/p1.txt", "0 ", "9 ")),
    ("yolo", "annotation", "a word", replaced("labels/train/p1.txt", "0 ", "road ")),
    ("yolo", "polygon", "one point", replaced("labels/train/p1.txt", "0 ", "0 0.5 0.5\n0 ")),
    ("yolo", "outside", "pixels, not shares", replaced("labels/train/p1.txt", "0 ", "0 1 1 30 1 30 30\n0 ")),
    ("yolo", "malformed", "broken YAML", replaced("data.yaml", "names:", "names: [")),
    ("label studio", "malformed", "cut off", halved("export.json")),
    ("label studio", "broken-rle", "brush cut off", region(2, {"rle": [0, 0, 15, 0, 59, 2]})),
    ("label studio", "polygon", "two points", region(1, {"points": [[1, 1], [5, 5]]})),
    ("label studio", "outside", "outside", region(0, {"x": 300})),
    ("label studio", "unknown-category", "no label", region(0, {"rectanglelabels": []})),
    ("label studio", "missing-image", "picture missing", removed("images/p1.png")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind", "case", "spoil"), BAD, ids=[f"{row[0]} {row[2]}" for row in BAD])
def test_a_bad_file_is_one_line_and_nothing_is_half_written(
    name: str, kind: str, case: str, spoil: Spoil, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset, write = FORMATS[name]
    root, out = tmp_path / "set", tmp_path / "place" / "out"
    write(root)
    out.parent.mkdir()
    bad = spoil(root)
    diagnosis = examine(lambda: locate(f"{dataset}:{root}"))
    matching = [finding for finding in diagnosis.errors if finding.kind == kind]
    assert matching, (case, diagnosis.errors)
    assert bad.name in matching[0].message
    assert run(["data", "convert", f"{dataset}:{root}", str(out), "--to", "folder"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.strip().splitlines()
    assert line.startswith("error: ")
    assert bad.name in line
    assert list(out.parent.iterdir()) == []


def test_a_malformed_file_hides_nothing_about_the_others(tmp_path: Path) -> None:
    annotated.write_labelme(tmp_path)
    cut(tmp_path / "p0.json")
    cut(tmp_path / "p1.png")
    changed(tmp_path / "p2.json", lambda document: document["shapes"][1].update(points=[[1, 1]]))
    (tmp_path / "notes.json").write_text('{"by": "me"}')
    found = told(examine(lambda: locate(f"labelme:{tmp_path}")))
    assert {"malformed p0.json", "unreadable p1.png", "polygon p2.json", "unused notes.json"} <= found


def test_lines_and_files_without_a_picture_are_told(tmp_path: Path) -> None:
    annotated.write_yolo(tmp_path)
    (tmp_path / "labels" / "train" / "nobody.txt").write_text("0 0.1 0.1 0.2 0.1 0.2 0.2\n")
    diagnosis = examine(lambda: locate(f"yolo:{tmp_path}"))
    assert diagnosis.ok
    assert "annotation-without-image nobody.txt" in told(diagnosis)


def test_labels_that_a_list_does_not_name_are_told(tmp_path: Path) -> None:
    annotated.write_labelme(tmp_path)
    (tmp_path / "labels.txt").write_text("__ignore__\n_background_\nroad\ncar\ntree\n")
    diagnosis = examine(lambda: locate(f"labelme:{tmp_path}"))
    assert {finding.kind for finding in diagnosis.errors} == {"unknown-category"}
    (tmp_path / "labels.txt").write_text("__ignore__\n_background_\nroad\ncar\ntree\nsign\n")
    assert locate(f"labelme:{tmp_path}").task.classes == ("_background_", "road", "car", "tree", "sign")


def test_a_folder_without_the_files_of_a_format_says_what_is_expected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind in ("coco", "cvat", "labelme", "yolo", "labelstudio"):
        assert run(["data", "check", f"{kind}:{tmp_path}", "--json"]) == 1
        (finding,) = json.loads(capsys.readouterr().out)["findings"]
        assert str(tmp_path) in finding["message"]


def categories(document: dict[str, Any]) -> None:
    document["categories"].append({"id": document["categories"][0]["id"], "name": "another"})


def images(document: dict[str, Any]) -> None:
    document["images"][1]["id"] = document["images"][0]["id"]


def owners(document: dict[str, Any]) -> None:
    for row in document["annotations"]:
        row["image_id"] = f"x{row['image_id']}"


@pytest.mark.parametrize(
    ("spoil", "what"),
    [(categories, "is both"), (images, "that of an earlier image"), (owners, "not listed")],
    ids=["category", "image", "owner"],
)
def test_ids_of_coco_that_do_not_tell_objects_apart_stop_the_training(
    spoil: Callable[[Any], None], what: str, tmp_path: Path
) -> None:
    annotated.write_coco(tmp_path)
    file = changed(tmp_path / "annotations" / "instances_train2017.json", spoil)
    with pytest.raises(DataProblem, match=what) as caught:
        locate(f"coco:{tmp_path}").samples("train")
    assert str(file) in str(caught.value)
    assert not examine(lambda: locate(f"coco:{tmp_path}")).ok


def test_a_picture_with_two_panoptic_annotations_is_told(tmp_path: Path) -> None:
    annotated.write_panoptic(tmp_path)
    file = tmp_path / "annotations" / "panoptic_all.json"
    changed(file, lambda document: document["annotations"].append(document["annotations"][0]))
    with pytest.raises(DataProblem, match="has 2 annotations"):
        locate(f"coco:{tmp_path}").samples("train")


def test_numbers_and_marks_that_tools_write_in_another_way_mean_the_same(tmp_path: Path) -> None:
    for folder in ("plain", "other"):
        annotated.write_coco(tmp_path / folder)

    def rewrite(document: dict[str, Any]) -> None:
        for row in document["annotations"]:
            row["image_id"] = float(row["image_id"])
            row["category_id"] = float(row["category_id"])
            row["iscrowd"] = str(row.get("iscrowd", 0))

    file = changed(tmp_path / "other" / "annotations" / "instances_train2017.json", rewrite)
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())  # a byte order mark, as Windows tools write it
    plain, other = (locate(f"coco:{tmp_path / folder}").samples("train") for folder in ("plain", "other"))
    for one, same in zip(plain, other, strict=True):
        np.testing.assert_array_equal(one.read().labels, same.read().labels)


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe{\x00", b"[[[["], ids=["empty", "utf-16", "cut"])
def test_a_damaged_file_is_named_by_folder_too(damage: bytes, tmp_path: Path) -> None:
    annotated.write_coco(tmp_path)
    for file in (tmp_path / "annotations").glob("*.json"):
        file.write_bytes(damage)
    with pytest.raises(DataProblem, match=r"instances_train2017\.json is no annotation file"):
        locate(f"folder:{tmp_path}")


def test_points_of_cvat_that_are_no_pairs_are_told(tmp_path: Path) -> None:
    annotated.write_cvat(tmp_path)
    file = next(tmp_path.glob("*.xml"))
    text = file.read_text()
    assert 'points="' in text
    file.write_text(text.replace('points="', 'points="1,2,3;4;', 1))
    with pytest.raises(DataProblem, match="are not pairs of numbers"):
        locate(f"cvat:{tmp_path}").samples("train")


def test_an_empty_mask_names_its_picture_where_one_file_holds_many(tmp_path: Path) -> None:
    annotated.write_coco(tmp_path)
    found = examine(lambda: locate(f"coco:{tmp_path}?unlabelled=ignore"))
    blank = [one for one in found.findings if one.kind == "all-ignored"]
    assert blank
    assert all(".png" in one.message or ".jpg" in one.message for one in blank)


def test_ten_million_points_of_cvat_take_little_memory(tmp_path: Path) -> None:
    annotated.write_cvat(tmp_path)
    file = next(tmp_path.glob("*.xml"))
    file.write_text(file.read_text().replace('points="', 'points="' + "1,2;" * 10_000_000, 1))
    tracemalloc.start()
    try:
        with pytest.raises(DataProblem, match="over the limit"):
            locate(f"cvat:{tmp_path}").samples("train")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * file.stat().st_size


def address(task: Any) -> None:
    task["data"]["image"] = "http://[::1/picture.png"


def sizes(task: Any) -> None:
    row = task["annotations"][1]["result"][-1]
    box = {"x": 1, "y": 1, "width": 5, "height": 5, "rectanglelabels": ["car"]}
    row.update(type="rectanglelabels", value=box, original_width=2 * row["original_width"])


def labels_of_lists(task: Any) -> None:
    task["annotations"][1]["result"].append({"id": ["x"], "type": "labels", "value": {"labels": [["y"]]}})
    task["annotations"][1]["result"][0]["value"] = {"points": [[1, 1], [5, 1], [5, 5]]}
    task["annotations"][1]["result"][0]["id"] = ["x"]


@pytest.mark.parametrize("spoil", [address, sizes, labels_of_lists], ids=["address", "sizes", "labels"])
def test_tasks_of_label_studio_that_make_no_sense_are_told(
    spoil: Callable[[Any], None], tmp_path: Path
) -> None:
    annotated.write_label_studio(tmp_path)
    file = next(tmp_path.glob("*.json"))

    def spoil_one(tasks: Any) -> None:
        spoil(max(tasks, key=lambda task: len(task["annotations"][1]["result"])))

    changed(file, spoil_one)
    found = examine(lambda: locate(f"labelstudio:{tmp_path}"))
    assert not found.ok
    assert any(str(file) in one.message for one in found.errors)


def test_names_of_yolo_that_are_lists_name_the_file(tmp_path: Path) -> None:
    annotated.write_yolo(tmp_path)
    (tmp_path / "data.yaml").write_text("names: [[a], [b]]\ntrain: images/train\n")
    with pytest.raises(DataProblem, match="names: ") as caught:
        locate(f"yolo:{tmp_path}").samples("train")
    assert str(tmp_path) in str(caught.value)

"""Files in the forms that annotation tools write (`benchmarks/annotation_tools.py` runs the tools themselves)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from segtailor.core.errors import DataProblem
from segtailor.data.convert import convert, plan_conversion
from segtailor.data.doctor import check
from segtailor.data.locate import locate
from tests.data.trees import write_image, write_mask

SIZE = (6, 8)
COLOURS = "0 0 0 background\n0 200 10 road\n40 200 10 traffic sign\n"


def cvat_file(path: Path, names: list[str]) -> None:
    """Write as Datumaro does: one file per split, masks of the whole picture with blanks between their runs."""
    images = "".join(
        f'<image id="{number}" name="{name}.png" width="8" height="6"><mask label="car" occluded="0" outside="0" '
        'keyframe="0" rle="8, 16, 24" left="0" top="0" width="8" height="6" z_order="0" group_id="1">\n</mask></image>'
        for number, name in enumerate(names)
    )
    labels = "<label><name>road</name><attributes></attributes></label><label><name>car</name></label>"
    path.write_text(
        f"<annotations><version>1.1</version><meta><task><labels>{labels}</labels></task></meta>{images}</annotations>"
    )


def test_one_cvat_file_per_split_divides_by_its_name(tmp_path: Path) -> None:
    for name in ("street 1", "night/street 2", "yard 1"):
        write_image(tmp_path / "images" / f"{name}.png", SIZE)
    cvat_file(tmp_path / "train.xml", ["street 1", "night/street 2"])
    cvat_file(tmp_path / "val.xml", ["yard 1"])
    dataset = locate(f"folder:{tmp_path}")
    assert [sample.name for sample in dataset.samples("train")] == [
        "images/street 1",
        "images/night/street 2",
    ]
    assert [sample.name for sample in dataset.samples("val")] == ["images/yard 1"]
    wanted = np.zeros(SIZE, np.uint8)
    wanted[1:3] = 2  # background, road, car
    np.testing.assert_array_equal(dataset.samples("val")[0].read().labels, wanted)


def test_masks_that_are_all_marked_as_crowds_are_drawn_in_order(tmp_path: Path) -> None:
    """Datumaro marks every mask that it writes as a crowd."""
    write_image(tmp_path / "images/train/a b.png", (2, 2))
    rows = [
        {
            "id": number,
            "image_id": 1,
            "category_id": number,
            "iscrowd": 1,
            "segmentation": {"size": [2, 2], "counts": runs},
        }
        for number, runs in ((1, [0, 4]), (2, [2, 2]))
    ]
    document = {
        "images": [{"id": 1, "width": 2, "height": 2, "file_name": "a b.png", "license": 0}],
        "annotations": rows,
        "categories": [{"id": 1, "name": "road"}, {"id": 2, "name": "car"}],
    }
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations/instances_train.json").write_text(json.dumps(document))
    labels = locate(f"folder:{tmp_path}").samples("train")[0].read().labels
    assert labels.tolist() == [[1, 2], [1, 2]]


def test_marks_of_crowds_that_mean_any_rle_are_questioned_and_can_be_overruled(tmp_path: Path) -> None:
    """supervision marks masks with holes as crowds, and writes the others as polygons."""
    write_image(tmp_path / "a b.png", (2, 2))
    square = [[0.0, 0.0, 2.0, 0.0, 2.0, 2.0, 0.0, 2.0]]
    first = {"id": 1, "image_id": 1, "category_id": 0, "iscrowd": 0, "segmentation": square}
    second = {
        "id": 2,
        "image_id": 1,
        "category_id": 1,
        "iscrowd": 1,
        "segmentation": {"size": [2, 2], "counts": [2, 2]},
    }
    document = {
        "info": {},
        "categories": [{"id": 0, "name": "road"}, {"id": 1, "name": "car"}],
        "images": [{"id": 1, "width": 2, "height": 2, "file_name": "a b.png"}],
        "annotations": [first, second],
    }
    (tmp_path / "instances_train.json").write_text(json.dumps(document))
    dataset = locate(f"folder:{tmp_path}")
    assert dataset.samples("train")[0].read().labels.tolist() == [[1, 1], [1, 1]]
    told = [finding for finding in check(dataset).findings if finding.kind == "many-crowds"]
    assert [finding.severity for finding in told] == ["warning"]
    assert "crowd=object" in told[0].fix
    overruled = locate(f"folder:{tmp_path}?crowd=object")
    assert overruled.samples("train")[0].read().labels.tolist() == [[1, 2], [1, 2]]
    assert "many-crowds" not in {finding.kind for finding in check(overruled).findings}


def write_list_export(root: Path) -> None:
    """Write as Datumaro and CVAT export CamVid: lists with quoted names, one picture without a mask."""
    for split, names in (("train", ("street 1", "night/street 2", "empty")), ("val", ("yard 1",))):
        lines = []
        for name in names:
            write_image(root / split / f"{name}.png")
            if name == "empty":
                lines.append(f"/{split}/{name}.png ")
                continue
            write_mask(root / f"{split}annot" / f"{name}.png", (0, 1, 2))
            lines.append(f'"/{split}/{name}.png" "{split}annot/{name}.png"')
        (root / f"{split}.txt").write_text("\n".join(lines))
    (root / "label_colors.txt").write_text(COLOURS)


def test_a_picture_without_a_mask_in_a_list_of_pairs_is_named(tmp_path: Path) -> None:
    write_list_export(tmp_path / "set")
    with pytest.raises(DataProblem, match=r"1 of 3 images .* have no mask, first .*empty\.png"):
        locate(f"folder:{tmp_path / 'set'}").samples("train")
    findings = check(locate(f"folder:{tmp_path / 'set'}")).findings
    errors = [(one.kind, Path(one.file).name) for one in findings if one.severity == "error"]
    assert errors == [("unpaired", "empty.png")]


def test_a_list_of_pairs_with_slashes_can_be_read_and_converted(tmp_path: Path) -> None:
    write_list_export(tmp_path / "set")
    dataset = locate(f"folder:{tmp_path / 'set'}?skip=empty")
    assert [sample.name for sample in dataset.samples("train")] == ["train/street 1", "train/night/street 2"]
    assert dataset.task.classes == ("background", "road", "traffic sign")
    convert(plan_conversion(dataset, tmp_path / "out"))
    again = locate(f"folder:{tmp_path / 'out'}")
    for split in ("train", "val"):
        for old, new in zip(dataset.samples(split), again.samples(split), strict=True):
            np.testing.assert_array_equal(np.sort(old.read().labels), np.sort(new.read().labels))


def test_the_layout_of_kitti_is_a_folder_of_images_and_masks(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write_image(tmp_path / split / "image_2/a b.png")
        write_mask(tmp_path / split / "semantic/a b.png", (0, 1, 2))
        write_mask(tmp_path / split / "instance/a b.png", (0, 1, 2))
    (tmp_path / "label_colors.txt").write_text(COLOURS)
    dataset = locate(f"folder:{tmp_path}")
    assert dataset.splits == ("train", "val")
    assert dataset.task.classes == ("background", "road", "traffic sign")
    assert dataset.samples("val")[0].read().labels[0, :3].tolist() == [0, 1, 2]


def write_cityscapes(root: Path, split: str, names: list[str]) -> None:
    for name in names:
        write_image(root / "leftImg8bit" / split / f"{name}_leftImg8bit.png")
        for kind in ("labelIds", "instanceIds", "color"):
            write_mask(root / "gtFine" / split / f"{name}_gtFine_{kind}.png", (0, 1, 2))


def test_an_export_in_the_layout_of_cityscapes_has_its_own_classes(tmp_path: Path) -> None:
    write_cityscapes(tmp_path, "train", ["street 1", "street 2"])
    write_cityscapes(tmp_path, "val", ["yard"])
    (tmp_path / "label_colors.txt").write_text(COLOURS)
    dataset = locate(f"folder:{tmp_path}")
    assert dataset.task.classes == ("background", "road", "traffic sign")
    assert dataset.samples("train")[0].read().labels[0, :3].tolist() == [0, 1, 2]
    assert "unpaired" not in {finding.kind for finding in check(dataset).findings}


def test_an_export_in_the_layout_of_cityscapes_may_be_undivided(tmp_path: Path) -> None:
    write_cityscapes(tmp_path, "default", [f"street {number}" for number in range(5)])
    (tmp_path / "label_colors.txt").write_text(COLOURS)
    dataset = locate(f"folder:{tmp_path}")
    assert [len(dataset.samples(split)) for split in ("train", "val")] == [4, 1]


def test_a_list_of_the_classes_of_cityscapes_changes_nothing(tmp_path: Path) -> None:
    from segtailor.data.cityscapes import CLASSES, TASK

    write_cityscapes(tmp_path, "train", ["a"])
    names = [f"other{number}" for number in range(34)]
    for name, (own, _) in CLASSES.items():
        names[own] = name.replace(" ", "")
    (tmp_path / "label_colors.txt").write_text("".join(f"0 0 0 {name}\n" for name in names))
    dataset = locate(f"cityscapes:{tmp_path}")
    assert dataset.task == TASK
    assert dataset.samples("train")[0].read().labels[0, :3].tolist() == [255, 255, 255]


def test_a_list_may_mix_pairs_and_names_that_the_folders_hold(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_image(tmp_path / "images" / f"{name}.png")
        write_mask(tmp_path / "masks" / f"{name}.png")
    full = tmp_path / "images/b.png"
    (tmp_path / "train.txt").write_text(f"a\n{full},masks/b.png\n")
    dataset = locate(f"folder:{tmp_path}?count=3")
    assert [sample.name for sample in dataset.samples("train")] == ["a", "images/b"]

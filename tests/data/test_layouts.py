"""The published datasets, each on a tiny tree in its own layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from segtailor.core.errors import DataProblem, UnknownName
from segtailor.data import camvid, cityscapes, voc
from segtailor.data.camvid import CamVid
from segtailor.data.cityscapes import Bdd100k, Cityscapes, CityscapesCoarse
from segtailor.data.dataset import Dataset
from segtailor.data.locate import locate
from segtailor.data.voc import Voc
from segtailor.testing.datasets import check_dataset
from tests.data.trees import write_colours, write_image, write_mask, write_palette_mask

TRAIN = ("0001TP_006690", "0006R0_f00930", "0016E5_00390")
VAL = ("0016E5_07959",)
TEST = ("0001TP_008550", "Seq05VD_f00000")


def names(dataset: Dataset, split: str) -> list[str]:
    return [sample.name for sample in dataset.samples(split)]


def first_labels(dataset: Dataset, count: int) -> list[int]:
    return dataset.samples("train")[0].read().labels.reshape(-1)[:count].tolist()


def camvid_index(root: Path) -> Path:
    for split, frames in (("train", TRAIN), ("val", VAL)):
        for name in frames:
            write_image(root / "images" / split / f"{name}.jpg")
            write_mask(root / "masks" / split / f"{name}.png", (0, 10, 255))
    return root


def test_camvid_index_form(tmp_path: Path) -> None:
    dataset = CamVid(path=camvid_index(tmp_path))
    check_dataset(dataset)
    assert dataset.splits == ("train", "val")
    assert names(dataset, "trainval") == [*TRAIN, *VAL]
    assert first_labels(dataset, 3) == [0, 10, 255]
    assert dataset.task.classes[3] == "road"
    assert len(dataset.task.classes) == 11


def test_camvid_fold_leaves_one_drive_out(tmp_path: Path) -> None:
    camvid_index(tmp_path)
    dataset = CamVid(path=tmp_path, fold="0016E5")
    check_dataset(dataset)
    assert names(dataset, "train") == ["0001TP_006690", "0006R0_f00930"]
    assert names(dataset, "val") == ["0016E5_00390", "0016E5_07959"]
    with pytest.raises(UnknownName, match="did you mean '0006R0'"):
        _ = CamVid(path=tmp_path, fold="0006RO").splits


def test_camvid_tutorial_form_ignores_id_11(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        write_image(tmp_path / split / f"{split}_1.png")
        write_mask(tmp_path / f"{split}annot" / f"{split}_1.png", (0, 10, 11))
    dataset = CamVid(path=tmp_path)
    check_dataset(dataset)
    assert dataset.splits == ("train", "val", "test")
    assert first_labels(dataset, 3) == [0, 10, 255]


def test_camvid_colours_merge_to_eleven_classes(tmp_path: Path) -> None:
    members = [
        (name, colour, label)
        for label, row in enumerate(camvid.MERGED.values())
        for name, colour in row.items()
    ]
    assert len(members) == 31  # and void
    assert len({colour for _, colour, _ in members} | {camvid.VOID}) == 32
    size = (4, 8)
    write_image(tmp_path / "train" / "a.png", size)
    write_colours(
        tmp_path / "train_labels" / "a_L.png", [*(colour for _, colour, _ in members), camvid.VOID], size
    )
    dataset = CamVid(path=tmp_path)
    check_dataset(dataset)
    assert first_labels(dataset, 32) == [*(label for _, _, label in members), 255]
    merged = {name: label for name, _, label in members}
    assert merged["LaneMkgsDriv"] == merged["Road"] == 3
    assert merged["TrafficLight"] == 6
    assert merged["Child"] == 9


@pytest.mark.parametrize("lists", [False, True])
def test_camvid_original_form_is_divided_by_frame_or_list(tmp_path: Path, lists: bool) -> None:
    for name in (*TRAIN, *VAL, *TEST):
        write_image(tmp_path / "701_StillsRaw_full" / f"{name}.png")
        write_colours(tmp_path / "LabeledApproved_full" / f"{name}_L.png", [(128, 64, 128), (0, 0, 0)])
    if lists:
        (tmp_path / "train.txt").write_text(f"{TEST[0]}\n")
        (tmp_path / "val.txt").write_text(
            f"/SegNet/CamVid/val/{TEST[1]}.png /SegNet/CamVid/valannot/{TEST[1]}.png\n"
        )
    dataset = CamVid(path=tmp_path)
    check_dataset(dataset)
    assert first_labels(dataset, 2) == [3, 255]
    if lists:
        assert names(dataset, "trainval") == list(TEST)
    else:
        assert [names(dataset, split) for split in dataset.splits] == [list(TRAIN), list(VAL), list(TEST)]


def test_camvid_refuses_foreign_ids(tmp_path: Path) -> None:
    write_mask(camvid_index(tmp_path) / "masks" / "train" / f"{TRAIN[0]}.png", (0, 254))
    with pytest.raises(DataProblem, match=r"holds class id 254"):
        CamVid(path=tmp_path).samples("train")[0].read()


@pytest.mark.parametrize("kind", ["labelIds", "labelTrainIds"])
def test_cityscapes_reads_both_kinds_of_ids(tmp_path: Path, kind: str) -> None:
    ids = (7, 33, 0, 9) if kind == "labelIds" else (0, 18, 255, 255)
    for split, city in (("train", "ulm"), ("train", "bonn"), ("val", "ulm")):
        stem = f"{city}_{split}_000019"
        write_image(tmp_path / "leftImg8bit" / split / city / f"{stem}_leftImg8bit.png")
        write_mask(tmp_path / "gtFine" / split / city / f"{stem}_gtFine_{kind}.png", ids)
        write_colours(tmp_path / "gtFine" / split / city / f"{stem}_gtFine_color.png", [(1, 2, 3)])
    dataset = Cityscapes(path=tmp_path)
    check_dataset(dataset)
    assert names(dataset, "train") == ["bonn/bonn_train_000019", "ulm/ulm_train_000019"]
    assert first_labels(dataset, 4) == [0, 18, 255, 255]


def test_cityscapes_table_is_the_published_one() -> None:
    assert len(cityscapes.TASK.classes) == 19
    published = {7: 0, 8: 1, 11: 2, 12: 3, 13: 4, 17: 5, 19: 6, 20: 7, 21: 8, 22: 9, 23: 10, 24: 11, 25: 12}
    published |= {26: 13, 27: 14, 28: 15, 31: 16, 32: 17, 33: 18}
    assert {own: label for own, label in cityscapes.LABEL_IDS.ids.items() if label != 255} == published


@pytest.mark.parametrize(
    ("images", "masks", "ending"),
    [
        ("images/10k/{}", "labels/sem_seg/masks/{}", ""),
        ("seg/images/{}", "seg/labels/{}", "_train_id"),
        ("bdd100k/seg/images/{}", "bdd100k/seg/labels/{}", "_train_id"),
    ],
)
def test_bdd100k_layouts(tmp_path: Path, images: str, masks: str, ending: str) -> None:
    for split in ("train", "val"):
        write_image(tmp_path / images.format(split) / f"{split}-0000.jpg")
        write_mask(tmp_path / masks.format(split) / f"{split}-0000{ending}.png", (18, 0, 255))
    dataset = Bdd100k(path=tmp_path)
    check_dataset(dataset)
    assert first_labels(dataset, 3) == [18, 0, 255]


def voc_tree(root: Path) -> Path:
    lists = root / voc.LISTS
    lists.mkdir(parents=True)
    for name in ("2007_1", "2007_2", "2008_3"):
        write_image(root / "JPEGImages" / f"{name}.jpg")
        write_palette_mask(root / "SegmentationClass" / f"{name}.png", (0, 20, 255), voc.voc_palette(256))
    (lists / "train.txt").write_text("2007_1\n")
    (lists / "val.txt").write_text("2007_2\n")
    (lists / "trainval.txt").write_text("2007_1\n2007_2\n")
    return root


def test_voc_reads_its_lists(tmp_path: Path) -> None:
    dataset = Voc(path=voc_tree(tmp_path / "VOCdevkit/VOC2012").parents[1])
    check_dataset(dataset)
    assert dataset.splits == ("train", "val")
    assert names(dataset, "trainval") == ["2007_1", "2007_2"]
    assert first_labels(dataset, 3) == [0, 20, 255]
    assert dataset.task.palette[1] == (128, 0, 0)
    assert dataset.task.palette[20] == (0, 64, 128)


def test_voc_takes_the_augmented_list_when_there(tmp_path: Path) -> None:
    voc_tree(tmp_path)
    lines = "".join(
        f"/JPEGImages/{name}.jpg /SegmentationClassAug/{name}.png\n" for name in ("2007_1", "2008_3")
    )
    (tmp_path / voc.LISTS / "train_aug.txt").write_text(lines)
    assert names(Voc(path=tmp_path), "train") == ["2007_1"]  # the list alone is not enough
    for name in ("2007_1", "2008_3"):
        write_mask(tmp_path / "SegmentationClassAug" / f"{name}.png", (5, 255))
    dataset = Voc(path=tmp_path)
    check_dataset(dataset)
    assert names(dataset, "train") == ["2007_1", "2008_3"]
    assert first_labels(dataset, 2) == [5, 255]
    assert names(Voc(path=tmp_path, list="train"), "train") == ["2007_1"]
    with pytest.raises(UnknownName, match="train_aug"):
        _ = Voc(path=tmp_path, list="train_augg").splits


EXPORT_COLOURS = ((0, 0, 0), (10, 200, 30), (250, 50, 50))  # of background, car and tree
LABEL_MAP = """# label:color_rgb:parts:actions
background:0,0,0::
car:10,200,30::
tree:250,50,50:leaf,stem:
"""


def export_tree(root: Path, *, palette: bool = False) -> Path:
    """Write the layout as annotation tools export it: any classes, one list, pictures of any suffix, in folders."""
    for name in ("left/a", "left/b", "right/a", "c", "d"):
        write_image(root / "JPEGImages" / f"{name}.png")
        mask = root / "SegmentationClass" / f"{name}.png"
        colours = (*EXPORT_COLOURS, voc.BORDER)
        if palette:  # indices in an order of their own: colours count
            write_palette_mask(mask, (3, 2, 1, 0), colours[::-1])
        else:
            write_colours(mask, colours)
    (root / voc.LISTS).mkdir(parents=True)
    (root / voc.LISTS / "default.txt").write_text("left/a\nleft/b\nright/a\nc\nd\n")
    (root / voc.LABEL_MAP).write_text(LABEL_MAP)
    return root


@pytest.mark.parametrize("palette", [False, True])
def test_an_export_in_the_layout_of_voc_has_its_own_classes(tmp_path: Path, palette: bool) -> None:
    dataset = locate(f"folder:{export_tree(tmp_path / 'my export', palette=palette)}")
    assert isinstance(dataset, Voc)
    check_dataset(dataset)
    assert dataset.task.classes == ("background", "car", "tree")
    assert dataset.task.palette == EXPORT_COLOURS
    assert dataset.splits == ("train", "val")
    assert sorted(names(dataset, "trainval")) == ["c", "d", "left/a", "left/b", "right/a"]
    assert first_labels(dataset, 4) == [0, 1, 2, 255]
    held = Voc(path=dataset.path, val=0.2, test=0.2)
    assert [len(names(held, split)) for split in held.splits] == [3, 1, 1]


def test_an_export_may_leave_out_colours_and_have_spaces_in_names(tmp_path: Path) -> None:
    write_image(tmp_path / "JPEGImages" / "my photo 1.png")
    colours = voc.voc_palette(3)
    write_colours(tmp_path / "SegmentationClass" / "my photo 1.png", (*colours, voc.BORDER))
    (tmp_path / voc.LISTS).mkdir(parents=True)
    with pytest.raises(DataProblem, match="holds no list"):
        _ = Voc(path=tmp_path).splits
    (tmp_path / voc.LISTS / "train.txt").write_text("my photo 1\n")
    (tmp_path / voc.LABEL_MAP).write_text("background:::\nroad:::\ncar:::\n")
    dataset = Voc(path=tmp_path)
    assert names(dataset, "train") == ["my photo 1"]
    assert dataset.task.palette == colours
    assert first_labels(dataset, 4) == [0, 1, 2, 255]


def test_own_splits_of_an_export_are_kept(tmp_path: Path) -> None:
    lists = export_tree(tmp_path) / voc.LISTS
    for name, lines in (("train", "left/a\nc\n"), ("validation", "d\n"), ("test", "right/a\n")):
        (lists / f"{name}.txt").write_text(lines)
    dataset = Voc(path=tmp_path)
    assert {split: names(dataset, split) for split in dataset.splits} == {
        "train": ["left/a", "c"], "val": ["d"], "test": ["right/a"],
    }  # fmt: skip
    with pytest.raises(DataProblem, match="own split 'val'; leave out"):
        _ = Voc(path=tmp_path, val=0.5).splits


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("car", "line 2: expected 'name:red,green,blue"),
        ("car:1,2::", "line 2: expected"),
        ("car:1,2,-3::", "line 2: expected"),
        ("car:1,2,999::", "from 0 to 255"),
        ("car:0,0,0::", "two classes"),
        ("background:1,2,3::", "same name"),
        (":1,2,3::", "label map"),
    ],
)
def test_a_damaged_label_map_is_told_in_one_line(tmp_path: Path, line: str, told: str) -> None:
    export_tree(tmp_path)
    (tmp_path / voc.LABEL_MAP).write_text(f"background:0,0,0::\n{line}\n")
    with pytest.raises(DataProblem, match=told) as problem:
        _ = Voc(path=tmp_path).task
    assert str(tmp_path / voc.LABEL_MAP) in str(problem.value)
    assert "\n" not in str(problem.value)


def test_a_colour_of_no_class_and_names_outside_are_told(tmp_path: Path) -> None:
    export_tree(tmp_path)
    (tmp_path / voc.LABEL_MAP).write_text("background:0,0,0::\ncar:10,200,30::\n")
    with pytest.raises(DataProblem, match="belong to no class"):
        Voc(path=tmp_path).samples("train")[0].read()
    (tmp_path / voc.LISTS / "default.txt").write_text("../../secret\nc\nd\n")
    with pytest.raises(DataProblem, match="secret"):
        Voc(path=tmp_path).samples("train")


def test_published_layouts_are_recognised(tmp_path: Path) -> None:
    voc_tree(tmp_path / "VOCdevkit/VOC2012")
    assert isinstance(locate(f"folder:{tmp_path}"), Voc)
    city = tmp_path / "city"
    write_image(city / "leftImg8bit/train/ulm/ulm_000000_000019_leftImg8bit.png")
    write_mask(city / "gtFine/train/ulm/ulm_000000_000019_gtFine_labelIds.png", (7, 33))
    assert isinstance(locate(f"folder:{city}"), Cityscapes)


def test_voc_names_missing_masks(tmp_path: Path) -> None:
    voc_tree(tmp_path)
    (tmp_path / "SegmentationClass" / "2007_1.png").unlink()
    with pytest.raises(DataProblem, match=r"no mask, first .*2007_1\.jpg"):
        Voc(path=tmp_path).samples("train")


@pytest.mark.parametrize("kind", [CamVid, Cityscapes, Bdd100k, Voc])
def test_foreign_folders_are_refused(tmp_path: Path, kind: type[CamVid]) -> None:
    with pytest.raises(DataProblem, match=r"is not a .* folder: expected|holds no gtFine"):
        _ = kind(path=tmp_path).splits


def test_check_dataset_finds_a_sample_in_two_splits(tmp_path: Path) -> None:
    voc_tree(tmp_path)
    with pytest.raises(AssertionError, match="two samples have the name '2007_2'"):
        check_dataset(Voc(path=tmp_path, list="trainval"))


def test_camvid_frames_follow_the_published_division() -> None:
    assert np.unique([camvid.usual_split(name) for name in TRAIN]).tolist() == ["train"]
    assert camvid.usual_split("0016E5_08159") == "val"
    assert camvid.usual_split("0016E5_08190") == "train"
    assert camvid.usual_split("0001TP_008520") == "train"


def test_coarse_cityscapes_trains_on_both_parts_and_scores_on_fine_masks(tmp_path: Path) -> None:
    for split, city, kind, ids in (
        ("train", "ulm", "gtCoarse", (7, 0)),
        ("train_extra", "lyon", "gtCoarse", (33, 0)),
        ("val", "bonn", "gtFine", (8, 9)),
        ("val", "bonn", "gtCoarse", (33, 33)),
    ):
        stem = f"{city}_000000_000019"
        write_image(tmp_path / "leftImg8bit" / split / city / f"{stem}_leftImg8bit.png")
        write_mask(tmp_path / kind / split / city / f"{stem}_{kind}_labelIds.png", ids)
    dataset = CityscapesCoarse(path=tmp_path)
    check_dataset(dataset)
    assert names(dataset, "train") == ["ulm/ulm_000000_000019", "lyon/lyon_000000_000019"]
    assert first_labels(dataset, 2) == [0, 255]
    assert dataset.samples("val")[0].read().labels.reshape(-1)[:2].tolist() == [1, 255]
    with pytest.raises(DataProblem, match=r"gtCoarse\.zip"):
        CityscapesCoarse(path=tmp_path / "leftImg8bit").splits  # noqa: B018

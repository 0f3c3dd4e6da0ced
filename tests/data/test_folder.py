"""The folder dataset: layouts, splits, classes given and found, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from segtailor.core.errors import DataProblem, UnknownName
from segtailor.data.folder import Folder
from segtailor.data.locate import locate
from segtailor.data.splits import split_samples
from segtailor.testing.datasets import check_dataset
from tests.data.trees import (
    cycle,
    write,
    write_colours,
    write_image,
    write_mask,
    write_pairs,
    write_palette_mask,
)

NAMES = [f"n{index}" for index in range(10)]
RED, BLUE, BLACK = (255, 0, 0), (0, 0, 255), (0, 0, 0)


def all_labels(dataset: Folder) -> set[int]:
    return {
        int(value)
        for split in dataset.splits
        for sample in dataset.samples(split)
        for value in np.unique(sample.read().labels)
    }


def names(dataset: Folder, split: str) -> list[str]:
    return [sample.name for sample in dataset.samples(split)]


def test_parallel_folders_are_divided_by_ratio_and_seed(tmp_path: Path) -> None:
    dataset = Folder(path=write_pairs(tmp_path, NAMES), val=0.3)
    check_dataset(dataset)
    assert dataset.splits == ("train", "val")
    assert len(names(dataset, "val")) == 3
    assert sorted(names(dataset, "train+val")) == NAMES == sorted(names(dataset, "trainval"))
    assert names(Folder(path=tmp_path, val=0.3), "val") == names(dataset, "val")
    others = {tuple(names(Folder(path=tmp_path, val=0.3, seed=seed), "val")) for seed in range(5)}
    assert len(others) > 1
    assert Folder(path=tmp_path, test=0.2).splits == ("train", "val", "test")
    assert Folder(path=tmp_path, val=0).splits == ("train",)


@pytest.mark.parametrize("layout", ["images/{}|masks/{}", "{}/images|{}/masks", "{}/Images|{}/annotations"])
def test_split_folders_are_found(tmp_path: Path, layout: str) -> None:
    images, masks = layout.split("|")
    for split in ("train", "valid"):
        for name in ("a", "b"):  # the same names in both splits
            write_image(tmp_path / images.format(split) / f"{name}_{split}.jpg")
            write_mask(tmp_path / masks.format(split) / f"{name}_{split}.png")
            write_image(tmp_path / images.format(split) / f"{name}.jpg")
            write_mask(tmp_path / masks.format(split) / f"{name}_mask.png")
    dataset = Folder(path=tmp_path)
    check_dataset(dataset)
    assert dataset.splits == ("train", "val")
    assert names(dataset, "val") == ["valid/a", "valid/a_valid", "valid/b", "valid/b_valid"]


def test_subfolders_that_are_no_splits_become_part_of_the_name(tmp_path: Path) -> None:
    for city in ("bonn", "ulm"):
        write_image(tmp_path / "images" / city / "a.png")
        write_mask(tmp_path / "masks" / city / "a.png")
    assert sorted(names(Folder(path=tmp_path, val=0.5), "trainval")) == ["bonn/a", "ulm/a"]


def test_val_is_drawn_from_train_only_when_asked(tmp_path: Path) -> None:
    write_pairs(tmp_path, NAMES, split="train")
    assert Folder(path=tmp_path).splits == ("train",)
    assert len(names(Folder(path=tmp_path, val=0.2), "val")) == 2
    write_pairs(tmp_path, ["v"], split="val")
    with pytest.raises(DataProblem, match=r"leave out val=0\.2"):
        _ = Folder(path=tmp_path, val=0.2).splits


@pytest.mark.parametrize("separator", [",", " ", "\t", " , "])
def test_list_files_name_the_pairs(tmp_path: Path, separator: str) -> None:
    for name in ("x", "y", "z"):
        write_image(tmp_path / "pictures" / f"{name}.bmp")
        write_mask(tmp_path / "truth" / f"{name}.tif")
    lines = [f"pictures/{name}.bmp{separator}truth/{name}.tif" for name in ("x", "y", "z")]
    (tmp_path / "train.txt").write_text("# comment\n" + "\n".join(lines[:2]) + "\n\n")
    (tmp_path / "val.txt").write_text(lines[2])
    dataset = Folder(path=tmp_path)
    check_dataset(dataset)
    assert names(dataset, "train") == ["pictures/x", "pictures/y"]
    (tmp_path / "all.csv").write_text(
        "image,mask\n" + "\n".join(line.replace(separator, ",") for line in lines)
    )
    single = Folder(path=tmp_path / "all.csv")
    assert len(names(single, "trainval")) == 3


def test_an_export_with_colours_in_a_list_and_one_list_of_all_is_read(tmp_path: Path) -> None:
    colours = ((10, 20, 30), (200, 100, 0))
    lines = []
    for number in range(5):
        write_image(tmp_path / "default" / f"photo {number}.png")
        write_colours(tmp_path / "defaultannot" / f"photo {number}.png", colours)
        lines.append(f'"/default/photo {number}.png" "defaultannot/photo {number}.png"')
    (tmp_path / "default.txt").write_text("\n".join(lines))
    (tmp_path / "label_colors.txt").write_text("10 20 30 road\n200 100 0 parked car\n")
    dataset = Folder(path=tmp_path)
    assert dataset.task.classes == ("road", "parked car")
    assert dataset.task.palette == colours
    assert dataset.splits == ("train", "val")
    assert len(names(dataset, "trainval")) == 5
    check_dataset(dataset)


def test_one_column_lists_choose_from_the_folders(tmp_path: Path) -> None:
    write_pairs(tmp_path, NAMES)
    (tmp_path / "train.txt").write_text("n3\nn1.png\n")
    assert names(Folder(path=tmp_path), "train") == ["n3", "n1"]
    (tmp_path / "train.txt").write_text("n3\nmissing\n")
    with pytest.raises(DataProblem, match="'missing'"):
        Folder(path=tmp_path).samples("train")


def test_classes_are_counted_and_numbered(tmp_path: Path) -> None:
    dataset = Folder(path=write_pairs(tmp_path, NAMES, (0, 3, 255)))
    assert dataset.task.classes == ("class0", "class1", "class2", "class3")
    assert all_labels(dataset) == {0, 3, 255}


def test_palette_masks_give_their_indices(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_image(tmp_path / "images" / f"{name}.png")
        write_palette_mask(tmp_path / "masks" / f"{name}.png", (0, 2), (BLACK, RED, BLUE))
    dataset = Folder(path=tmp_path)
    assert dataset.task.outputs == 3
    assert all_labels(dataset) == {0, 2}
    by_colour = Folder(path=tmp_path, encoding="colour", palette=("0000ff", "#000000"))
    assert all_labels(by_colour) == {0, 1}


def test_palettes_made_per_file_are_read_by_colour(tmp_path: Path) -> None:
    for name, colours in (("a", (RED, BLUE)), ("b", (BLUE, RED))):
        write_image(tmp_path / "images" / f"{name}.png")
        write_palette_mask(tmp_path / "masks" / f"{name}.png", (0, 1), colours)
    first, second = Folder(path=tmp_path, val=0.5).samples("trainval")
    assert (first.read().labels != second.read().labels).all()


def colour_tree(root: Path, colours: list[tuple[int, int, int]]) -> Path:
    for name in ("a", "b"):
        write_image(root / "images" / f"{name}.png")
        write_colours(root / "masks" / f"{name}.png", colours)
    return root


def test_colours_are_detected_in_a_fixed_order(tmp_path: Path) -> None:
    dataset = Folder(path=colour_tree(tmp_path, [RED, BLACK, BLUE]))
    check_dataset(dataset)
    assert dataset.task.palette == (BLACK, BLUE, RED)
    assert dataset.samples("train")[0].read().labels[0, :3].tolist() == [2, 0, 1]
    without_black = Folder(path=tmp_path, ignore=("#000000",))
    assert without_black.task.palette == (BLUE, RED)
    assert all_labels(without_black) == {0, 1, 255}


@pytest.mark.parametrize(
    ("file", "content"),
    [
        (
            "classes.yaml",
            "classes:\n- {name: car, colour: [255, 0, 0]}\n- {name: sky, color: '#0000ff'}\nignore: ['#000000']",
        ),
        ("classes.txt", "car 255 0 0\n0 0 255\tsky\n0,0,0,void\n"),
        ("palette.json", json.dumps({"car": RED, "sky": BLUE, "void": BLACK})),
    ],
)
def test_class_files_name_the_colours(tmp_path: Path, file: str, content: str) -> None:
    (tmp_path / file).write_text(content)
    dataset = Folder(path=colour_tree(tmp_path, [RED, BLACK, BLUE]))
    assert dataset.task.classes[:2] == ("car", "sky")
    assert dataset.task.palette[:2] == (RED, BLUE)
    black = 255 if file == "classes.yaml" else 2
    assert dataset.samples("train")[0].read().labels[0, :3].tolist() == [0, black, 1]


def test_class_file_may_renumber_ids(tmp_path: Path) -> None:
    write_pairs(tmp_path, NAMES, (7, 11, 12, 0))
    (tmp_path / "classes.yaml").write_text(
        "classes:\n- {name: road, id: 7}\n- {name: house, id: [11, 12]}\nignore: [0]"
    )
    labels = Folder(path=tmp_path).samples("train")[0].read().labels
    assert labels[0, :4].tolist() == [0, 1, 1, 255]


def test_colour_of_no_class_is_refused_or_ignored(tmp_path: Path) -> None:
    colour_tree(tmp_path, [RED, BLACK, BLUE])
    strict = Folder(path=tmp_path, palette=("ff0000", "0000ff"))
    with pytest.raises(DataProblem, match=r"belong to no class, e\.g\. \(0, 0, 0\)"):
        strict.samples("train")[0].read()
    assert all_labels(Folder(path=tmp_path, palette=("ff0000", "0000ff"), others="ignore")) == {0, 1, 255}
    with pytest.raises(DataProblem, match="no palette is known"):
        Folder(path=tmp_path, count=3).samples("train")[0].read()


def test_photographs_as_masks_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_image(tmp_path / "images" / f"{name}.png", (32, 32))
        write_image(tmp_path / "masks" / f"{name}.png", (32, 32))
    with pytest.raises(DataProblem, match="more than 255 colours"):
        _ = Folder(path=tmp_path).task


def test_grey_masks_saved_as_rgb_are_ids(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_image(tmp_path / "images" / f"{name}.png")
        write(tmp_path / "masks" / f"{name}.png", np.repeat(cycle((0, 1, 2))[:, :, None], 3, axis=2))
    assert all_labels(Folder(path=tmp_path)) == {0, 1, 2}


def test_binary_masks_need_a_word_from_the_user(tmp_path: Path) -> None:
    write_pairs(tmp_path, NAMES, (0, 255))
    assert all_labels(Folder(path=tmp_path)) == {0, 255}
    binary = Folder(path=tmp_path, binary=True)
    assert binary.task.classes == ("background", "foreground")
    assert all_labels(binary) == {0, 1}
    named = Folder(path=tmp_path, binary=True, classes=("wall", "crack"))
    assert named.task.classes == ("wall", "crack")
    assert all_labels(named) == {0, 1}


def test_stamp_tells_when_labels_mean_something_else(tmp_path: Path) -> None:
    write_pairs(tmp_path, NAMES, (0, 255))
    plain, binary = Folder(path=tmp_path), Folder(path=tmp_path, binary=True)
    assert plain.samples("train")[0].fingerprint != binary.samples("train")[0].fingerprint


# -- bad input ------------------------------------------------------------------------------------------------


def test_empty_and_missing_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataProblem, match="does not exist"):
        Folder(path=tmp_path / "nowhere")
    with pytest.raises(DataProblem, match="holds no folders; expected 'images' beside 'masks'"):
        _ = Folder(path=tmp_path).splits
    (tmp_path / "images").mkdir()
    with pytest.raises(DataProblem, match="no folder of masks"):
        _ = Folder(path=tmp_path).splits
    (tmp_path / "masks").mkdir()
    with pytest.raises(DataProblem, match="no images with masks"):
        _ = Folder(path=tmp_path).splits


def test_one_image_trains_only_without_validation(tmp_path: Path) -> None:
    write_pairs(tmp_path, ["only"])
    with pytest.raises(DataProblem, match=r"1 image.*give val=0"):
        Folder(path=tmp_path).samples("train")
    check_dataset(Folder(path=tmp_path, val=0))


def test_unpaired_files_are_named_and_listed(tmp_path: Path) -> None:
    write_pairs(tmp_path, NAMES)
    alone, spare = (
        write_image(tmp_path / "images" / "alone.png"),
        write_mask(tmp_path / "masks" / "spare.png"),
    )
    dataset = Folder(path=tmp_path)
    with pytest.raises(DataProblem, match=r"1 of \d+ images .* have no mask, first .*alone\.png"):
        dataset.samples("train")
    assert dataset.pairings["train"].images_alone == (alone,)
    assert dataset.pairings["train"].masks_alone == (spare,)


def test_two_images_of_one_name_are_refused(tmp_path: Path) -> None:
    write_pairs(tmp_path, NAMES)
    write_image(tmp_path / "images" / "n1.jpg")
    with pytest.raises(DataProblem, match=r"n1\.jpg and .*n1\.png share one name"):
        Folder(path=tmp_path).samples("train")


def test_all_ignored_masks_are_refused(tmp_path: Path) -> None:
    write_pairs(tmp_path, NAMES, (255,))
    with pytest.raises(DataProblem, match="every pixel of every mask is ignored"):
        _ = Folder(path=tmp_path).task
    assert all_labels(Folder(path=tmp_path, count=2)) == {255}


def test_class_id_254_is_refused_with_a_remedy(tmp_path: Path) -> None:
    write_pairs(tmp_path, NAMES, (0, 1, 254))
    with pytest.raises(DataProblem, match="ignore=254"):
        _ = Folder(path=tmp_path).task
    assert all_labels(Folder(path=tmp_path, ignore=(254,))) == {0, 1, 255}
    with pytest.raises(DataProblem, match=r"n\d\.png holds class id 254; the dataset's ids are 0, 1, 255"):
        Folder(path=tmp_path, count=2).samples("train")[0].read()


def test_wide_ids_are_refused_unless_ignored(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_image(tmp_path / "images" / f"{name}.png", (1, 3))
        write(tmp_path / "masks" / f"{name}.png", np.array([[0, 1, 65535]], dtype=np.uint16))
    with pytest.raises(DataProblem, match="65535"):
        _ = Folder(path=tmp_path).task
    assert all_labels(Folder(path=tmp_path, ignore=("65535",))) == {0, 1, 255}


def test_damaged_mask_is_reported_when_read_not_when_surveyed(tmp_path: Path) -> None:
    write_pairs(tmp_path, NAMES)
    (tmp_path / "masks" / "n4.png").write_bytes(b"")
    dataset = Folder(path=tmp_path)
    assert dataset.task.outputs == 3
    sample = next(one for one in dataset.samples("trainval") if one.name == "n4")
    with pytest.raises(DataProblem, match=r"n4\.png cannot be read: it is empty"):
        sample.read()


def test_sizes_that_disagree_are_refused(tmp_path: Path) -> None:
    write_pairs(tmp_path, NAMES)
    write_mask(tmp_path / "masks" / "n0.png", size=(3, 8))
    sample = next(one for one in Folder(path=tmp_path).samples("trainval") if one.name == "n0")
    with pytest.raises(DataProblem, match=r"is 8x3, its image .* is 8x6"):
        sample.read()


def test_options_that_disagree_are_refused(tmp_path: Path) -> None:
    write_pairs(tmp_path, NAMES)
    for wrong in ({"classes": ("a",), "count": 3}, {"palette": ("000000",), "count": 2}):
        with pytest.raises(DataProblem, match="disagree"):
            _ = Folder(path=tmp_path, **wrong).task  # type: ignore[arg-type]
    for count in (0, 10**12):
        with pytest.raises(DataProblem, match="not a number of classes"):
            _ = Folder(path=tmp_path, count=count).task
    with pytest.raises(DataProblem, match="same name"):
        _ = Folder(path=tmp_path, classes=("a", "a", "b")).task
    with pytest.raises(DataProblem, match="stands for two classes"):
        _ = Folder(path=tmp_path, palette=("000000", "000000")).labels


def test_unknown_split_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean 'val'"):
        Folder(path=write_pairs(tmp_path, NAMES)).samples("vall")


def test_a_folder_beside_the_splits_does_not_undo_them(tmp_path: Path) -> None:
    write_pairs(tmp_path, ["a", "b"], split="train")
    write_pairs(tmp_path, ["c"], split="val")
    (tmp_path / "images" / ".ipynb_checkpoints").mkdir()
    assert Folder(path=tmp_path).problems() == ()
    write_image(tmp_path / "images" / "old" / "x.png")
    write_image(tmp_path / "images" / "y.png")
    folder = Folder(path=tmp_path)
    assert [sample.name for sample in folder.samples("val")] == ["val/c"]
    assert len(folder.samples("train")) == 2
    unused = [(severity, kind, Path(file).name) for severity, kind, file, _, _ in folder.problems()]
    assert unused == [("warning", "unused", "old"), ("warning", "unused", "y.png")]


def test_hidden_folders_are_no_splits_and_no_images(tmp_path: Path) -> None:
    write_pairs(tmp_path, ["c"], split="val")
    (tmp_path / "images" / ".cache").mkdir()
    assert Folder(path=tmp_path).splits == ("val",)


def test_samples_are_skipped_by_name(tmp_path: Path) -> None:
    write_image(write_pairs(tmp_path, NAMES) / "images" / "alone.png")
    dataset = Folder(path=tmp_path, val=0.3, skip=("n3", "alone"))
    assert sorted(names(dataset, "trainval")) == [name for name in NAMES if name != "n3"]
    kept = [name for name in names(Folder(path=tmp_path, val=0.3, skip=("alone",)), "val") if name != "n3"]
    assert names(dataset, "val") == kept  # the others stay where they were


def test_a_sample_to_skip_that_is_not_there_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    write_pairs(tmp_path, ["north_1", "south_2"])
    with pytest.raises(UnknownName, match=r"sample to skip is called 'north-1'; did you mean 'north_1'"):
        Folder(path=tmp_path, skip=("south_2", "north-1")).splits  # noqa: B018 - looks the files up


def test_photos_and_masks_may_lie_side_by_side(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d"):
        write_image(tmp_path / f"{name}.jpg")
        write_mask(tmp_path / f"{name}.png", (0, 1))
    dataset = locate(f"folder:{tmp_path}")
    check_dataset(dataset)
    assert sorted(sample.name for sample in split_samples(dataset, "trainval")) == ["a", "b", "c", "d"]
    assert len(dataset.samples("val")) == 1
    (tmp_path / "b.png").unlink()
    with pytest.raises(DataProblem, match=r"no mask, first .*b\.jpg"):
        locate(f"folder:{tmp_path}").samples("train")

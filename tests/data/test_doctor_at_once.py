"""The doctor says everything at once: no fault hides another, in any layout."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from segtailor.data.doctor import Diagnosis, examine
from segtailor.data.locate import locate
from segtailor.verbs.main import run
from tests.data.test_person_files import coco_row, mpii_row
from tests.data.trees import write, write_image, write_mask
from tests.schemas import conforming

SIZE, OTHER = (24, 32), (20, 28)
Place = Callable[[str, str], tuple[Path, Path]]  # split and name -> image and mask


def folder_place(root: Path) -> Place:
    return lambda split, name: (
        root / "images" / split / f"{name}.png",
        root / "masks" / split / f"{name}.png",
    )


def cityscapes_place(root: Path) -> Place:
    return lambda split, name: (
        root / "leftImg8bit" / split / "ulm" / f"{name}_leftImg8bit.png",
        root / "gtFine" / split / "ulm" / f"{name}_gtFine_labelIds.png",
    )


def bdd_place(root: Path) -> Place:
    return lambda split, name: (
        root / "images" / "10k" / split / f"{name}.png",
        root / "labels" / "sem_seg" / "masks" / split / f"{name}.png",
    )


def voc_place(root: Path) -> Place:
    return lambda _, name: (root / "JPEGImages" / f"{name}.jpg", root / "SegmentationClass" / f"{name}.png")


def stills_place(root: Path) -> Place:
    return lambda _, name: (
        root / "701_StillsRaw_full" / f"{name}.png",
        root / "LabeledApproved_full" / f"{name}_L.png",
    )


LAYOUTS: dict[str, tuple[str, Callable[[Path], Place]]] = {
    "undescribed folder": ("folder:{}", folder_place),
    "folder with classes": ("folder:{}?count=3", folder_place),
    "camvid": ("camvid:{}", folder_place),
    "camvid stills by list": ("camvid:{}", stills_place),
    "cityscapes": ("cityscapes:{}", cityscapes_place),
    "bdd100k": ("bdd100k:{}", bdd_place),
    "voc": ("voc:{}", voc_place),
}
SPLITS = {"train": [f"a{number}" for number in range(8)], "val": [f"b{number}" for number in range(4)]}


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def write_broken(place: Place) -> dict[str, str]:
    """Write two splits in which each sample is wrong in another way; return the kinds and files to be found."""
    for split, names in SPLITS.items():
        for name in names:
            image, mask = place(split, name)
            write_image(image, SIZE)
            write_mask(mask, (0, 1, 2), SIZE)
    files = {name: place(split, name) for split, names in SPLITS.items() for name in names}
    write_mask(files["a0"][1], (0, 1, 200), SIZE)
    write_mask(files["a1"][1], (0, 1, 2), OTHER)
    cut(files["a2"][0])
    cut(files["a3"][1])
    files["a4"][1].unlink()
    files["a5"][0].write_text("no picture at all")
    files["a6"][1].write_bytes(b"")
    shutil.copy(files["a7"][0], files["b0"][0])
    shutil.copy(files["a0"][0], files["b1"][0])  # even a picture whose mask is wrong
    write_mask(files["b2"][1], (0, 1, 200), OTHER)  # two faults of one file
    cut(files["b3"][0])
    cut(files["b3"][1])
    wrong = {"a0": "id-out-of-range", "a1": "size-mismatch", "a3": "unreadable", "a6": "unreadable"}
    expected = {f"{kind} {files[name][1]}": kind for name, kind in wrong.items()}
    for kind, file in (
        ("unreadable", files["a2"][0]),
        ("unpaired", files["a4"][0]),
        ("unreadable", files["a5"][0]),
        ("duplicate", files["b0"][0]),
        ("duplicate", files["b1"][0]),
        ("id-out-of-range", files["b2"][1]),
        ("size-mismatch", files["b2"][1]),
        ("unreadable", files["b3"][0]),
        ("unreadable", files["b3"][1]),
    ):
        expected[f"{kind} {file}"] = kind
    return expected


def told(diagnosis: Diagnosis) -> set[str]:
    return {f"{found.kind} {found.file}" for found in diagnosis.findings}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_fault_of_every_file_is_told_at_once(
    layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, places = LAYOUTS[layout]
    root = tmp_path / "a folder with spaces"
    expected = write_broken(places(root))
    if layout in ("voc", "camvid stills by list"):
        lists = root / "ImageSets" / "Segmentation" if layout == "voc" else root
        lists.mkdir(parents=True, exist_ok=True)
        for split, names in SPLITS.items():
            (lists / f"{split}.txt").write_text("\n".join(names))
    data = text.format(root)
    assert set(expected) <= told(examine(lambda: locate(data))), data
    assert run(["data", "check", data, "--json"]) == 1
    found = conforming("data check", capsys.readouterr().out)
    assert set(expected) <= {f"{one['kind']} {one['file']}" for one in found["findings"]}
    assert all(one["message"] and one["fix"] and one["severity"] for one in found["findings"])


@pytest.mark.parametrize("layout", ["folder-depth", "nyudv2"])
def test_every_fault_of_depth_files_is_told_at_once(layout: str, tmp_path: Path) -> None:
    root, nyu = tmp_path, layout == "nyudv2"
    far = np.full(SIZE, 3000, np.uint16)

    def files(split: str, name: str) -> tuple[Path, Path]:
        if nyu:
            return root / split / f"{name}_rgb.png", root / split / f"{name}_depth_mm.png"
        return root / "images" / split / f"{name}.png", root / "depth" / split / f"{name}.png"

    for split, names in SPLITS.items():
        for name in names:
            image, depth = files(split, name)
            write_image(image, SIZE)
            write(depth, far)
    cut(files("train", "a0")[0])
    cut(files("train", "a1")[1])
    write(files("train", "a2")[1], far[:20])
    write(files("train", "a3")[1], far.astype(np.uint8))
    write_image(files("train", "a4")[1], OTHER)  # colours, and of another size
    files("train", "a5")[1].unlink()
    shutil.copy(files("train", "a3")[0], files("val", "b0")[0])
    text = f"nyudv2:{root}" if nyu else f"folder:{root}?task=depth"
    found = told(examine(lambda: locate(text)))
    for kind, file in (
        ("unreadable", files("train", "a0")[0]),
        ("unreadable", files("train", "a1")[1]),
        ("size-mismatch", files("train", "a2")[1]),
        ("unusable", files("train", "a3")[1]),
        ("unusable", files("train", "a4")[1]),
        ("size-mismatch", files("train", "a4")[1]),
        ("unpaired", files("train", "a5")[0]),
        ("duplicate", files("val", "b0")[0]),
    ):
        assert f"{kind} {file}" in found


@pytest.mark.parametrize("layout", ["mpii", "coco-keypoints"])
def test_every_fault_of_people_is_told_at_once(layout: str, tmp_path: Path) -> None:
    size = (60, 80)
    mpii = layout == "mpii"
    pictures = {split: tmp_path / ("images" if mpii else f"{split}2017") for split in ("train", "val")}
    for split, names in (("train", ("a", "b", "c")), ("val", ("d", "e"))):
        for name in names:
            write_image(pictures[split] / f"{name}.png", size)
    shutil.copy(pictures["train"] / "b.png", pictures["val"] / "e.png")
    cut(pictures["train"] / "a.png")
    lists = {"train": ("a", "b", "c", "gone"), "val": ("d", "e")}
    folder = tmp_path / ("annot" if mpii else "annotations")
    folder.mkdir()
    for split, names in lists.items():
        if mpii:
            rows = [mpii_row(image=f"{name}.png") for name in names]
            rows.append(mpii_row(image=f"{names[0]}.png", joints=[[1, 2]]))
            (folder / f"{'valid' if split == 'val' else split}.json").write_text(json.dumps(rows))
        else:
            images = [{"id": at, "file_name": f"{name}.png"} for at, name in enumerate(names)]
            people = [coco_row(id=at, image_id=at) for at in range(len(names))]
            people.append(coco_row(id=77, image_id=0, bbox=[0, 0, -3, 4]))
            document = {"images": images, "annotations": people}
            (folder / f"person_keypoints_{split}2017.json").write_text(json.dumps(document))
    found = told(examine(lambda: locate(f"{layout}:{tmp_path}")))
    files = {path.name: path for path in folder.iterdir()}
    assert f"unreadable {pictures['train'] / 'a.png'}" in found
    assert f"unreadable {pictures['train'] / 'gone.png'}" in found
    assert f"duplicate {pictures['val'] / 'e.png'}" in found
    assert {f"annotation {file}" for file in files.values()} <= found


def test_an_annotation_file_that_cannot_be_read_hides_nothing_about_the_other(tmp_path: Path) -> None:
    write_image(tmp_path / "images" / "a.png", (60, 80))
    (tmp_path / "annot").mkdir()
    (tmp_path / "annot" / "train.json").write_text("[{")
    (tmp_path / "annot" / "valid.json").write_text(json.dumps([mpii_row(), mpii_row(image="gone.png")]))
    diagnosis = examine(lambda: locate(f"mpii:{tmp_path}"))
    assert f"unreadable {tmp_path / 'images' / 'gone.png'}" in told(diagnosis)
    assert any("train.json" in found.message for found in diagnosis.errors)


def test_a_class_list_that_cannot_be_used_hides_no_damaged_file(tmp_path: Path) -> None:
    place = folder_place(tmp_path)
    expected = write_broken(place)
    (tmp_path / "palette.json").write_text('{"road": [1, 2]}')
    diagnosis = examine(lambda: locate(f"folder:{tmp_path}"))
    about_ids = {line for line in expected if line.startswith("id-out-of-range")}
    assert set(expected) - about_ids <= told(diagnosis)
    assert any("palette" in found.message or "colour" in found.message for found in diagnosis.errors)
    assert not any(found.kind == "id-out-of-range" for found in diagnosis.findings)  # the list is to blame


def test_names_that_clash_and_lines_that_lead_nowhere_hide_nothing(tmp_path: Path) -> None:
    place = folder_place(tmp_path)
    expected = write_broken(place)
    twin = tmp_path / "images" / "train" / "a7.jpg"
    write_image(twin, SIZE)
    found = told(examine(lambda: locate(f"folder:{tmp_path}?count=3")))
    assert any(line.startswith("listing ") and "a7" in line for line in found)
    assert len(set(expected) - found) <= 1  # of the twins only one is looked at
    (tmp_path / "train.txt").write_text("train/a0\ntrain/none\ntrain/a0\n")
    listed = examine(lambda: locate(f"folder:{tmp_path}?count=3"))
    assert [one.kind for one in listed.findings].count("listing") == 2
    assert f"id-out-of-range {place('train', 'a0')[1]}" in told(listed)


def test_one_image_is_too_few_and_its_faults_are_still_told(tmp_path: Path) -> None:
    write_image(tmp_path / "images" / "a.png", SIZE)
    write_mask(tmp_path / "masks" / "a.png", (0, 1), OTHER)
    found = examine(lambda: locate(f"folder:{tmp_path}"))
    assert {"listing", "size-mismatch"} <= {one.kind for one in found.errors}


def test_masks_that_are_all_missing_are_each_told(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write_image(tmp_path / "images" / f"{name}.png", SIZE)
    cut(tmp_path / "images" / "c.png")
    (tmp_path / "masks").mkdir()
    found = told(examine(lambda: locate(f"folder:{tmp_path}")))
    assert {f"unpaired {tmp_path / 'images' / name}.png" for name in ("a", "b", "c")} <= found
    assert f"unreadable {tmp_path / 'images' / 'c.png'}" in found


def test_damaged_masks_do_not_hide_that_all_masks_are_binary(tmp_path: Path) -> None:
    for split, names in SPLITS.items():
        for name in names:
            write_image(tmp_path / "images" / split / f"{name}.png", SIZE)
            write_mask(tmp_path / "masks" / split / f"{name}.png", (0, 255), SIZE)
    cut(tmp_path / "masks" / "train" / "a0.png")
    kinds = {one.kind for one in examine(lambda: locate(f"folder:{tmp_path}?count=2")).errors}
    assert {"unreadable", "binary-mask"} <= kinds


def write_mat(path: Path, *, count: int = 12, seed: int = 0) -> Path:
    """Write a labelled file as NYU's: HDF5, sides exchanged, depth in metres."""
    rng = np.random.default_rng(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w", userblock_size=512) as content:
        content["images"] = rng.integers(0, 256, (count, 3, 96, 64), dtype=np.uint8)
        content["depths"] = rng.uniform(1, 5, (count, 96, 64)).astype(np.float32)
        content["labels"] = np.zeros((count, 96, 64), np.uint16)
    return path


def test_a_mat_file_can_be_checked_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_mat(tmp_path / "my data" / "nyu labelled.mat")
    assert run(["data", "check", f"nyudv2:{file}", "--json"]) == 0
    found = conforming("data check", capsys.readouterr().out)
    assert found["splits"]["train"]["read"] == 10
    assert not [one for one in found["findings"] if one["severity"] == "error"]
    assert run(["data", "show", f"nyudv2:{file}?val=0.5", "--out", str(tmp_path / "sheet.png")]) == 0
    assert Image.open(tmp_path / "sheet.png").size[0] > 64


def test_the_same_picture_in_two_splits_of_a_mat_file_is_told(tmp_path: Path) -> None:
    file = write_mat(tmp_path / "nyu.mat")
    with h5py.File(file, "r+") as content:
        content["images"][:] = content["images"][0]
        content["depths"][1] = np.nan
    kinds = {one.kind for one in examine(lambda: locate(f"nyudv2:{file}")).findings}
    assert {"duplicate", "all-missing"} <= kinds


@pytest.mark.parametrize("damage", ["cut", "types", "scrambled", "text"])
def test_a_damaged_mat_file_is_one_clear_finding(damage: str, tmp_path: Path) -> None:
    file = write_mat(tmp_path / "nyu.mat")
    content = bytearray(file.read_bytes())
    if damage == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "types":
        with h5py.File(file, "r+") as opened:
            del opened["images"]
            opened["images"] = np.zeros((12, 3, 96, 64), np.float32)
    elif damage == "scrambled":
        content[600:1400] = bytes(800)
        file.write_bytes(content)
    else:
        file.write_text("MATLAB 5.0 MAT-file")
    found = examine(lambda: locate(f"nyudv2:{file}"))
    assert not found.ok
    assert str(file) in found.errors[0].message


def test_a_mat_file_can_be_trained_on_and_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_mat(tmp_path / "my data" / "nyu labelled.mat", count=6)
    around = ["--cache", str(tmp_path / "cache"), "--device", "cpu"]
    data = ["--data", f"nyudv2:{file}"]
    out = tmp_path / "run"
    words = ["train", "lpsnet-step0", *data, "--out", str(out), "--set", "fit.steps=2", "--batch", "2"]
    assert run([*words, "--crop", "64x96", *around]) == 0, capsys.readouterr().err
    assert run(["eval", str(out / "weights"), *data, "--json", *around]) == 0
    assert '"rmse"' in capsys.readouterr().out


def five_faults_of_a_folder(root: Path) -> tuple[str, dict[str, Path]]:
    """Return the dataset, and the file that each kind of fault is about."""
    place = folder_place(root)
    for split, names in SPLITS.items():
        for name in names:
            write_image(place(split, name)[0], SIZE)
            write_mask(place(split, name)[1], (0, 1, 2), SIZE)
    write_mask(place("train", "a0")[1], (0, 1, 200), SIZE)
    write_mask(place("train", "a1")[1], (0, 1, 2), OTHER)
    cut(place("train", "a2")[0])
    place("train", "a3")[1].unlink()
    shutil.copy(place("train", "a4")[0], place("val", "b0")[0])
    return f"folder:{root}", {
        "id-out-of-range": place("train", "a0")[1],
        "size-mismatch": place("train", "a1")[1],
        "unreadable": place("train", "a2")[0],
        "unpaired": place("train", "a3")[0],
        "duplicate": place("val", "b0")[0],
    }


def five_faults_of_coco(root: Path) -> tuple[str, dict[str, Path]]:
    """The same five of a COCO export with a mask (RLE) per picture; the file with the annotations is to be named."""
    for split, names in SPLITS.items():
        images, rows = [], []
        for number, name in enumerate(names):
            write_image(root / "images" / split / f"{name}.png", SIZE)
            images.append({"id": number, "file_name": f"{name}.png", "height": SIZE[0], "width": SIZE[1]})
            runs = {"size": list(SIZE), "counts": [0, SIZE[0] * SIZE[1]]}
            rows.append({"id": number, "image_id": number, "category_id": 7, "segmentation": runs})
        if split == "train":
            rows[0]["category_id"] = 8
            rows[1]["segmentation"] = {"size": list(OTHER), "counts": [0, OTHER[0] * OTHER[1]]}
            del rows[3]["segmentation"]
            images.append({"id": 99, "file_name": "gone.png", "height": SIZE[0], "width": SIZE[1]})
        document = {"images": images, "annotations": rows, "categories": [{"id": 7, "name": "road"}]}
        (root / "annotations").mkdir(exist_ok=True)
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(document))
    cut(root / "images/train/a2.png")
    shutil.copy(root / "images/train/a4.png", root / "images/val/b0.png")
    train = root / "annotations/instances_train.json"
    return f"folder:{root}", {
        "unknown-category": train,
        "rle-size": train,
        "unreadable": root / "images/train/a2.png",
        "not-drawn": train,
        "missing-image": train,
        "duplicate": root / "images/val/b0.png",
    }


@pytest.mark.parametrize("write_faults", [five_faults_of_a_folder, five_faults_of_coco])
def test_faults_of_five_kinds_are_told_in_one_go_in_both_forms(
    write_faults: Callable[[Path], tuple[str, dict[str, Path]]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data, expected = write_faults(tmp_path / "my photos")
    assert run(["data", "check", data, "--json"]) == 1
    found = conforming("data check", capsys.readouterr().out)["findings"]
    assert {f"{kind} {file}" for kind, file in expected.items()} <= {
        f"{one['kind']} {one['file']}" for one in found
    }
    assert run(["data", "check", data]) == 1
    said = "".join("".join(capsys.readouterr()).split())  # lines may be broken anywhere
    for one in found:
        if one["kind"] in expected:
            assert "".join(f"{one['message']}".split()) in said
            assert "".join(f"{one['fix']}".split()) in said
            assert "".join(one["file"].split()) in said

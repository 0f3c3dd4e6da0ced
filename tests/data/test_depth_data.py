"""Depth from files: units, gaps, layouts, and what the doctor says about depth that cannot be."""

from __future__ import annotations

import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from segtailor.core.errors import DataProblem, UnknownName, UserError
from segtailor.data import doctor
from segtailor.data.cache import open_pixels
from segtailor.data.checks.rules import depth_counts, depth_quantile
from segtailor.data.locate import locate
from segtailor.data.sheet import contact_sheet
from tests.support import shared

SIZE = (12, 16)


def write_pair(folder: Path, name: str, depth: NDArray[np.uint16], *, seed: int = 0) -> None:
    for part in ("images", "depth"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    colours = np.random.default_rng([seed, int(name[1:])]).integers(0, 256, (*depth.shape, 3), dtype=np.uint8)
    Image.fromarray(colours).save(folder / "images" / f"{name}.png")
    Image.fromarray(depth).save(folder / "depth" / f"{name}.png")


def write_folder(folder: Path, *, millimetres: float = 3000, count: int = 6) -> Path:
    for index in range(count):
        depth = np.random.default_rng(index).uniform(0.8, 1.2, SIZE) * millimetres
        depth[0] = 0
        write_pair(folder, f"n{index}", depth.astype(np.uint16))
    return folder


def kinds(text: str) -> dict[str, str]:
    return {finding.kind: finding.severity for finding in doctor.examine(lambda: locate(text)).findings}


def test_a_folder_of_16_bit_depth_is_metres_with_gaps(tmp_path: Path) -> None:
    found = locate(f"folder:{write_folder(tmp_path)}?task=depth&val=0.5&farthest=10")
    assert found.task.kind == "depth"
    assert found.task.span == (0.1, 10.0)
    pair = found.samples("train")[0].read()
    assert pair.labels.dtype == np.float32
    assert (pair.labels[0] == 0).all()
    assert 2.3 < pair.labels[1:].mean() < 3.7
    assert {len(found.samples(split)) for split in ("train", "val")} == {3}


@pytest.mark.parametrize(("unit", "factor"), [("mm", 1), ("cm", 10), ("m", 1000)])
def test_the_unit_says_what_the_numbers_count(tmp_path: Path, unit: str, factor: float) -> None:
    write_folder(tmp_path, millimetres=3000)
    pair = locate(f"folder:{tmp_path}?task=depth&unit={unit}").samples("train")[0].read()
    assert pair.labels[1:].mean() == pytest.approx(3 * factor, rel=0.2)


def test_depth_goes_through_the_cache_unchanged(tmp_path: Path) -> None:
    data = locate(f"folder:{write_folder(tmp_path / 'data')}?task=depth")
    for _ in range(2):  # decoded, then mapped
        pixels = open_pixels(data, "train", tmp_path / "cache")
        for index, sample in enumerate(data.samples("train")):
            assert (pixels.pair(index).labels == sample.read().labels).all()
        assert pixels.canvas()[1].dtype == np.float32


def test_pictures_of_several_sizes_share_a_canvas_padded_with_gaps(tmp_path: Path) -> None:
    for index, size in enumerate([(8, 10), (12, 6), (5, 5)]):
        write_pair(tmp_path / "data", f"n{index}", np.full(size, 2000, np.uint16))
    pixels = open_pixels(locate(f"folder:{tmp_path / 'data'}?task=depth&val=0"), "train", tmp_path / "cache")
    _, depth = pixels.canvas()
    assert depth.shape == (3, 12, 10)
    assert sorted((depth > 0).sum((1, 2)).tolist()) == [25, 72, 80]


def test_a_healthy_folder_has_no_finding_about_depth(tmp_path: Path) -> None:
    assert not {kind for kind in kinds(f"folder:{write_folder(tmp_path)}?task=depth") if "depth" in kind}


def test_depth_in_another_unit_is_a_warning(tmp_path: Path) -> None:
    assert kinds(f"folder:{write_folder(tmp_path)}?task=depth&unit=m").get("depth-unit") == "warning"
    assert (
        kinds(f"folder:{write_folder(tmp_path / 'b', millimetres=30)}?task=depth")["depth-unit"] == "warning"
    )


def test_depth_outside_of_the_bounds_is_a_warning(tmp_path: Path) -> None:
    assert kinds(f"folder:{write_folder(tmp_path)}?task=depth&farthest=2")["depth-range"] == "warning"


def test_depth_that_is_all_missing_is_an_error(tmp_path: Path) -> None:
    for index in range(4):
        write_pair(tmp_path, f"n{index}", np.zeros(SIZE, np.uint16))
    report = doctor.examine(lambda: locate(f"folder:{tmp_path}?task=depth"))
    assert not report.ok
    assert report.errors[0].kind == "all-missing"
    assert "not measured" in report.errors[0].fix


def test_a_single_empty_map_is_a_warning_that_names_the_file(tmp_path: Path) -> None:
    write_pair(write_folder(tmp_path), "n9", np.zeros(SIZE, np.uint16))
    found = doctor.examine(lambda: locate(f"folder:{tmp_path}?task=depth")).findings
    assert [Path(one.file).name for one in found if one.kind == "all-missing"] == ["n9.png"]


def test_depth_maps_of_8_bits_or_colours_are_refused_with_their_name(tmp_path: Path) -> None:
    write_folder(tmp_path)
    Image.fromarray(np.zeros(SIZE, np.uint8)).save(tmp_path / "depth/n0.png")
    Image.fromarray(np.zeros((*SIZE, 3), np.uint8)).save(tmp_path / "depth/n1.png")
    found = doctor.examine(lambda: locate(f"folder:{tmp_path}?task=depth&val=0")).errors
    assert {Path(one.file).name for one in found} == {"n0.png", "n1.png"}
    assert {"8 bits" in one.message for one in found} == {True, False}


def test_an_unknown_task_of_a_dataset_lists_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="depth"):
        locate(f"folder:{tmp_path}?task=deph")
    with pytest.raises(UnknownName, match="segmentation"):
        locate(f"camvid:{tmp_path}?task=depth")


def test_nyu_pictures_pair_by_the_endings_of_their_names(tmp_path: Path) -> None:
    for name in ("1", "2", "3"):
        Image.fromarray(np.full((*SIZE, 3), 9, np.uint8)).save(tmp_path / f"{name}_rgb.jpg")
        Image.fromarray(np.full(SIZE, 1500, np.uint16)).save(tmp_path / f"{name}_depth_mm.png")
    found = locate(f"nyudv2:{tmp_path}?val=0.34")
    assert sorted(sample.name for split in found.splits for sample in found.samples(split)) == ["1", "2", "3"]
    assert (found.samples("train")[0].read().labels == 1.5).all()
    (tmp_path / "2_depth_mm.png").unlink()
    with pytest.raises(DataProblem, match="2_rgb"):
        locate(f"nyudv2:{tmp_path}").samples("train")


def test_nyu_splits_in_folders_are_kept(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        Image.fromarray(np.full((*SIZE, 3), 9, np.uint8)).save(tmp_path / split / "1_rgb.png")
        Image.fromarray(np.full(SIZE, 1500, np.uint16)).save(tmp_path / split / "1_depth.png")
    assert locate(f"nyudv2:{tmp_path}").splits == ("train", "test")


def test_a_folder_that_is_no_nyu_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(DataProblem, match=r"NAME_rgb\.jpg and NAME_depth_mm\.png"):
        locate(f"nyudv2:{tmp_path}")


def test_the_real_samples_open_as_nyu_and_look_right_to_the_doctor() -> None:
    found = locate(f"nyudv2:{shared('data/samples/nyud')}?val=0.25")
    pairs = [sample.read() for split in found.splits for sample in found.samples(split)]
    assert {pair.labels.shape for pair in pairs} == {(400, 560)}
    assert all(0.01 < (pair.labels == 0).mean() < 0.07 for pair in pairs)  # 1.5 to 6 % have no measurement
    assert all(pair.labels.max() <= 8.0 for pair in pairs)
    assert not [one for one in doctor.check(found).findings if "depth" in one.kind]


def test_a_mat_file_without_h5py_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nyu.mat").write_bytes(b"MATLAB 7.3")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(UserError, match=r"segtailor\[nyu\]"):
        locate(f"nyudv2:{tmp_path / 'nyu.mat'}")


def test_the_labelled_mat_file_is_read_one_picture_at_a_time(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed: the .mat file of NYU cannot be read")
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (5, 3, 16, 12), dtype=np.uint8)
    depths = rng.uniform(1, 5, (5, 16, 12)).astype(np.float32)
    depths[:, 0, 0] = np.nan
    with h5py.File(tmp_path / "nyu.mat", "w") as content:
        content["images"], content["depths"] = images, depths
    found = locate(f"nyudv2:{tmp_path / 'nyu.mat'}?val=0.4")
    sample = next(one for split in found.splits for one in found.samples(split) if one.name == "0003")
    pair = sample.read()
    assert (pair.image == images[3].transpose(2, 1, 0)).all()
    assert pair.labels[0, 0] == 0
    assert pair.labels[5, 7] == depths[3, 7, 5]
    with h5py.File(tmp_path / "other.mat", "w") as content:
        content["images"] = images
    with pytest.raises(DataProblem, match="not \\(n, 3, width, height\\)"):
        locate(f"nyudv2:{tmp_path / 'other.mat'}")
    (tmp_path / "broken.mat").write_bytes(b"no mat file at all")
    with pytest.raises(DataProblem, match="cannot be read"):
        locate(f"nyudv2:{tmp_path / 'broken.mat'}")


def test_synthetic_depth_is_that_of_the_same_scenes() -> None:
    depth = locate("synthetic:task=depth,size=32x64,train=2,val=1").samples("train")[1]
    labels = locate("synthetic:size=32x64,train=2,val=1").samples("train")[1]
    assert (depth.read().image == labels.read().image).all()
    assert depth.fingerprint != labels.fingerprint
    sky = labels.read().labels == locate("synthetic").task.classes.index("sky")
    assert (depth.read().labels[sky] == 0).all()
    assert depth.read().labels.max() <= 80


def test_a_histogram_of_logarithms_tells_quantiles() -> None:
    depth = np.random.default_rng(0).uniform(1, 9, 10_000).astype(np.float32)
    counts = depth_counts(np.where(depth < 1.5, 0, depth).astype(np.float32))
    assert counts.sum() == depth.size
    assert counts[255] == (depth < 1.5).sum()
    assert depth_quantile(counts, 0.5) == pytest.approx(np.median(depth[depth >= 1.5]), rel=0.06)


def test_a_contact_sheet_shows_depth_with_a_legend(tmp_path: Path) -> None:
    sheet = contact_sheet(locate(f"folder:{write_folder(tmp_path)}?task=depth"), "train", count=2)
    assert sheet.picture.size[0] > 600


def written_splits(file: Path, lists: dict[str, list[int]], *, packed: bool) -> None:
    """Write a MATLAB file of version 5 with columns of numbers, each packed by zlib or not."""

    def element(kind: int, body: bytes) -> bytes:
        return struct.pack("<II", kind, len(body)) + body + bytes(-len(body) % 8)

    parts = []
    for name, numbers in lists.items():
        label = element(1, name.encode())
        if len(name) <= 4:  # short names lie in the tag
            label = struct.pack("<I", len(name) << 16 | 1) + name.encode().ljust(4, bytes(1))
        body = element(6, struct.pack("<II", 6, 0)) + element(5, struct.pack("<ii", len(numbers), 1)) + label
        matrix = element(14, body + element(4, np.array(numbers, "<u2").tobytes()))
        shut = zlib.compress(matrix)
        parts.append(struct.pack("<II", 15, len(shut)) + shut if packed else matrix)
    file.write_bytes(b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x0100) + b"IM" + b"".join(parts))


def nyu_mat(file: Path, scenes: list[str] | None = None, count: int = 12) -> None:
    """Write a labelled file of small pictures, with the names of their scenes."""
    import h5py

    with h5py.File(file, "w") as content:
        content["images"] = np.zeros((count, 3, 4, 3), np.uint8)
        content["depths"] = np.ones((count, 4, 3), np.float32)
        if scenes is not None:
            held = [content.create_dataset(f"s{n}", data=np.array([[ord(c)] for c in text], np.uint16))
                    for n, text in enumerate(scenes)]  # fmt: skip
            rows = content.create_dataset("scenes", (1, len(held)), dtype=h5py.ref_dtype)
            rows[0, :] = [one.ref for one in held]


@pytest.mark.parametrize("packed", [False, True])
def test_the_official_split_is_the_list_of_the_toolbox(tmp_path: Path, packed: bool) -> None:
    pytest.importorskip("h5py", reason="h5py is not installed: the .mat file of NYU cannot be read")
    nyu_mat(tmp_path / "nyu.mat")
    train, test = [2, 5, 6, 9, 12], [1, 3, 4, 7, 8, 10, 11]
    written_splits(tmp_path / "splits.mat", {"trainNdxs": train, "x": [7], "testNdxs": test}, packed=packed)
    found = locate(f"nyudv2:{tmp_path / 'nyu.mat'}")
    assert [int(sample.name) + 1 for sample in found.samples("train")] == train
    assert [int(sample.name) + 1 for sample in found.samples("val")] == test
    written_splits(tmp_path / "splits.mat", {"trainNdxs": [1], "testNdxs": [13]}, packed=packed)
    with pytest.raises(DataProblem, match="names picture 13, and there are 12"):
        locate(f"nyudv2:{tmp_path / 'nyu.mat'}")
    (tmp_path / "splits.mat").write_bytes(b"MATLAB".ljust(126) + b"IM" + struct.pack("<II", 14, 2**31))
    with pytest.raises(DataProblem, match="cannot be read as a MATLAB file"):
        locate(f"nyudv2:{tmp_path / 'nyu.mat'}")


def test_a_list_that_was_saved_again_in_version_7_3_is_read_too(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed: the .mat file of NYU cannot be read")
    nyu_mat(tmp_path / "nyu.mat")
    for trained, refused in ((3.0, None), (2.5, "no list of whole numbers")):
        with h5py.File(tmp_path / "splits.mat", "w", userblock_size=512) as content:
            content["trainNdxs"] = np.array([[trained, 5, 12]])
            content["testNdxs"] = np.array([[1, 2, 4]], np.uint16)
        with (tmp_path / "splits.mat").open("r+b") as file:
            file.write(b"MATLAB 7.3 MAT-file".ljust(124) + struct.pack("<H", 0x0200) + b"IM")
        if refused:
            with pytest.raises(DataProblem, match=refused):
                locate(f"nyudv2:{tmp_path / 'nyu.mat'}")
        else:
            found = locate(f"nyudv2:{tmp_path / 'nyu.mat'}")
            assert [sample.name for sample in found.samples("train")] == ["0002", "0004", "0011"]
            assert [sample.name for sample in found.samples("val")] == ["0000", "0001", "0003"]


def test_without_the_list_no_scene_is_on_both_sides(tmp_path: Path) -> None:
    pytest.importorskip("h5py", reason="h5py is not installed: the .mat file of NYU cannot be read")
    scenes = [f"office_{number // 3:04d}" for number in range(12)]
    nyu_mat(tmp_path / "nyu.mat", scenes)
    found = locate(f"nyudv2:{tmp_path / 'nyu.mat'}?val=0.25")
    train, val = ({scenes[int(one.name)] for one in found.samples(split)} for split in ("train", "val"))
    assert len(val) == 1
    assert not train & val
    nyu_mat(tmp_path / "bare.mat")  # without scenes: the frames are cut once
    bare = locate(f"nyudv2:{tmp_path / 'bare.mat'}?val=0.25")
    assert [sample.name for sample in bare.samples("val")] == ["0009", "0010", "0011"]

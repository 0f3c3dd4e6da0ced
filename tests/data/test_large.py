"""Large pictures: windows read from files give the same batches, scores and findings as decoded pictures."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from segtailor.core.errors import DataProblem, UserError
from segtailor.core.task import Preprocessing
from segtailor.data import bands, large, parts
from segtailor.data.augment import Augment
from segtailor.data.bands import uploaded_bands
from segtailor.data.batches import batches_of
from segtailor.data.cache import open_pixels
from segtailor.data.doctor import check
from segtailor.data.large import LargePixels, open_samples
from segtailor.data.legend import Legend, LegendClass
from segtailor.data.locate import locate
from segtailor.nets.network import build, initialise
from segtailor.spaces.networks import resolve
from segtailor.training.evaluate import evaluate
from segtailor.verbs.main import run
from tests.data.annotated import write_coco
from tests.data.test_parts import tiled_tiff

SIZE = (90, 130)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (large, parts, bands):
        monkeypatch.setattr(module, "LARGE_PIXELS", 5000)
    monkeypatch.setattr(large, "LEAST_FILE_BYTES", 0)
    monkeypatch.setattr(large, "MAX_DIRECT_PART_PIXELS", 130 * 60)


def pixels_of(seed: int, channels: int = 3) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (*SIZE, channels), dtype=np.uint8)


def labels_of(seed: int) -> NDArray[np.uint8]:
    rng = np.random.default_rng([seed, 1])
    return np.kron(rng.integers(1, 4, (9, 13)), np.ones((10, 10))).astype(np.uint8)  # ids 1 to 3, never 0


def save(path: Path, values: NDArray[np.uint8], form: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = values if values.ndim == 3 else values[:, :, None]
    if form == "tiles":
        return tiled_tiff(path.with_suffix(".tif"), plain, 32)
    if form == "npy":
        np.save(path.with_suffix(".npy"), values)
        return path.with_suffix(".npy")
    picture = Image.fromarray(values)
    if form == "palette":
        picture.putpalette([channel for value in range(256) for channel in (value, 255 - value, 7)])
    if form in ("strips", "palette", "one strip"):
        rows = SIZE[0] if form == "one strip" else 16
        picture.save(path.with_suffix(".tif"), compression="tiff_adobe_deflate", tiffinfo={278: rows})
        return path.with_suffix(".tif")
    picture.save(path.with_suffix(f".{form}"))
    return path.with_suffix(f".{form}")


def write_set(root: Path, picture: str = "tiles", mask: str = "strips", count: int = 4) -> str:
    for number in range(count):
        split = "val" if number == count - 1 else "train"
        save(root / "images" / split / f"p{number}", pixels_of(number), picture)
        save(root / "masks" / split / f"p{number}", labels_of(number), mask)
    classes = [{"name": name, "id": number} for number, name in enumerate(("a", "b", "c"), start=1)]
    (root / "classes.yaml").write_text(json.dumps({"classes": classes}))
    return f"folder:{root}"


@pytest.mark.parametrize(
    ("picture", "mask"),
    [
        ("tiles", "tiles"),
        ("strips", "palette"),
        ("tiles", "png"),
        ("png", "one strip"),
        ("one strip", "strips"),
    ],
)
@pytest.mark.parametrize("turned", [0.0, 20.0])
def test_windows_give_the_same_batches_as_decoded_pictures(
    picture: str, mask: str, turned: float, tmp_path: Path
) -> None:
    dataset = locate(write_set(tmp_path / "set", picture, mask))
    whole = open_pixels(dataset, "train", tmp_path / "cache")
    found = open_samples(dataset, "train", tmp_path / "other")
    assert isinstance(found, LargePixels)
    for index in range(len(found)):
        np.testing.assert_array_equal(found.pair(index).image, whole.pair(index).image)
        np.testing.assert_array_equal(found.pair(index).labels, whole.pair(index).labels)
    augment = Augment(crop=(40, 48), scale=(0.5, 2.0), brightness=0.2, rotate=turned, mix=0.5)
    ours, theirs = (
        batches_of(one, augment, Preprocessing(), device=CPU)(batch=2, seed=3) for one in (found, whole)
    )
    for step in (0, 3, 1, 2):
        mine, wanted = ours.at(step), theirs.at(step)
        assert torch.equal(mine.images, wanted.images)
        assert torch.equal(mine.labels, wanted.labels)


def test_pictures_that_are_read_in_parts_leave_the_cache_empty_and_masks_as_png_take_a_byte_per_pixel(
    tmp_path: Path,
) -> None:
    direct = locate(write_set(tmp_path / "direct"))
    open_samples(direct, "train", tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
    half = locate(write_set(tmp_path / "half", "tiles", "png"))
    assert isinstance(open_samples(half, "train", tmp_path / "cache"), LargePixels)
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert len(files) == 3
    assert sum(path.stat().st_size for path in files) < 3 * (SIZE[0] * SIZE[1] + 200)
    before = {path: path.stat().st_mtime_ns for path in files}
    open_samples(half, "train", tmp_path / "cache")
    assert {path: path.stat().st_mtime_ns for path in files} == before  # decoded once


def test_a_batch_reads_only_what_its_crops_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = locate(write_set(tmp_path))
    found = open_samples(dataset, "train", tmp_path / "cache")
    augment = Augment(crop=(32, 32), scale=(1.0, 1.0))
    batches = batches_of(found, augment, Preprocessing(), device=CPU)(batch=2, seed=0)  # type: ignore[arg-type]
    read: list[int] = []
    part = parts.TiffRows._part

    def counted(rows: parts.TiffRows, index: int, row: int) -> bytes:
        read.append(rows.tile[0] * rows.tile[1])
        return part(rows, index, row)

    monkeypatch.setattr(parts.TiffRows, "_part", counted)
    batches._source.read(0)  # type: ignore[attr-defined]
    # At most 2x2 tiles of 32x32 and three strips of 16 rows per crop.
    assert 0 < sum(read) <= 2 * (4 * 32 * 32 + 3 * 16 * SIZE[1])


def test_styles_and_the_balance_of_classes_come_from_windows(tmp_path: Path) -> None:
    text = write_set(tmp_path / "set")
    for number in range(3):  # of one brightness each
        save(tmp_path / f"set/images/train/p{number}", pixels_of(number) // 8 + 70 * number, "tiles")
    dataset = locate(text)
    found = open_samples(dataset, "train", tmp_path / "cache")
    whole = open_pixels(dataset, "train", tmp_path / "cache")
    augment = Augment(crop=(40, 48), restyle=1.0)
    ours, theirs = (
        batches_of(one, augment, Preprocessing(), device=CPU)(batch=2, seed=3) for one in (found, whole)
    )
    assert ours._styles is not None
    assert theirs._styles is not None
    np.testing.assert_allclose(ours._styles.mean, theirs._styles.mean, atol=0.02)
    mine, wanted = (
        np.bincount(one.labels.ravel(), minlength=3)[:3] / one.labels.size for one in (ours, theirs)
    )
    np.testing.assert_allclose(mine / mine.sum(), wanted / wanted.sum(), atol=0.05)


def test_scores_of_windows_are_those_of_whole_pictures(tmp_path: Path) -> None:
    dataset = locate(write_set(tmp_path / "set"))
    network = build(resolve("fast-scnn"), 3, outputs=("main",))
    initialise(network, 0)
    both = open_samples(dataset, "train", tmp_path / "a"), open_pixels(dataset, "train", tmp_path / "b")
    ours, theirs = (
        evaluate(network, one, task=dataset.task, preprocessing=Preprocessing(), device=CPU) for one in both
    )
    assert ours.document(dataset.task.classes) == theirs.document(dataset.task.classes)


def test_the_doctor_finds_the_same_faults_of_large_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = write_set(tmp_path / "set", count=8)
    train = tmp_path / "set/images/train"
    masks = tmp_path / "set/masks/train"
    save(masks / "p0", np.full(SIZE, 77, np.uint8), "strips")
    save(masks / "p1", labels_of(1)[:80], "strips")
    content = (train / "p2.tif").read_bytes()
    (train / "p2.tif").write_bytes(content[: len(content) // 4])
    content = (masks / "p3.tif").read_bytes()
    (masks / "p3.tif").write_bytes(content[: len(content) // 4])
    (masks / "p4.tif").unlink()
    shutil.copy(train / "p5.tif", tmp_path / "set/images/val/p7.tif")
    found = {(one.kind, one.file) for one in check(locate(text)).findings}
    monkeypatch.setattr(large, "LARGE_PIXELS", 10**9)
    monkeypatch.setattr(parts, "LARGE_PIXELS", 10**9)
    usual = {(one.kind, one.file) for one in check(locate(text)).findings}
    assert found == usual
    assert {"id-out-of-range", "size-mismatch", "unreadable", "unpaired", "duplicate"} <= {
        kind for kind, _ in found
    }


def test_a_picture_without_a_mask_that_is_too_large_to_decode_is_no_damaged_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = write_set(tmp_path / "set")
    (tmp_path / "set/masks/train/p1.tif").unlink()
    monkeypatch.setattr("segtailor.data.files.MAX_PIXELS", 6000)
    found = {one.kind for one in check(locate(text)).findings if one.severity == "error"}
    assert found == {"unpaired"}


def test_counts_and_classes_of_large_masks_are_those_of_small_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = write_set(tmp_path / "set", "tiles", "tiles")
    (tmp_path / "set/classes.yaml").unlink()
    found = locate(text)
    facts, names = check(found).splits, found.task.classes
    monkeypatch.setattr(large, "LARGE_PIXELS", 10**9)
    monkeypatch.setattr(parts, "LARGE_PIXELS", 10**9)
    assert names == locate(text).task.classes
    assert facts == check(locate(text)).splits


def test_a_file_that_changes_and_sizes_that_differ_are_told(tmp_path: Path) -> None:
    text = write_set(tmp_path / "set")
    found = open_samples(locate(text), "train", tmp_path / "cache")
    save(tmp_path / "set/images/train/p0", pixels_of(0)[:64], "tiles")
    with pytest.raises(DataProblem, match="changed while it was used"):
        found.pictures[0].read(0, 10, 0, 10)  # type: ignore[union-attr]
    with pytest.raises(DataProblem, match="Make both the same size"):
        open_samples(locate(text), "train", tmp_path / "cache")


def test_shapes_are_drawn_once_for_large_pictures(tmp_path: Path) -> None:
    write_coco(tmp_path / "set")
    dataset = locate(f"folder:{tmp_path / 'set'}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large, "LARGE_PIXELS", 10)
        found = open_samples(dataset, "train", tmp_path / "cache")
    assert isinstance(found, LargePixels)
    whole = open_pixels(dataset, "train", tmp_path / "cache")
    for index in range(len(found)):
        np.testing.assert_array_equal(found.pair(index).labels, whole.pair(index).labels)
        np.testing.assert_array_equal(found.pair(index).image, whole.pair(index).image)


@pytest.mark.parametrize("form", ["tiles", "npy"])
def test_large_pictures_of_other_bands_are_read_in_windows(form: str, tmp_path: Path) -> None:
    for number in range(3):
        split = "val" if number == 2 else "train"
        save(tmp_path / "set/images" / split / f"p{number}", pixels_of(number, 5), form)
        save(tmp_path / "set/masks" / split / f"p{number}", labels_of(number), "strips")
    dataset = locate(f"folder:{tmp_path / 'set'}?bands=5&count=4")
    found = open_samples(dataset, "train", tmp_path / "a")
    assert isinstance(found, LargePixels)
    assert found.channels == 5
    whole = open_pixels(dataset, "train", tmp_path / "b")
    for index in range(2):
        np.testing.assert_array_equal(found.pair(index).image, whole.pair(index).image)
        np.testing.assert_array_equal(
            found.window(index, 33, 70, 20, 99).image, whole.pair(index).image[33:70, 20:99]
        )


def test_a_training_and_an_evaluation_of_large_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_set(tmp_path / "set")
    out = tmp_path / "run"
    cache = ["--cache", str(tmp_path / "cache"), "--device", "cpu"]
    words = ["train", "lpsnet-step0", "--data", data, "--out", str(out), "--batch", "2", "--crop", "64x64"]
    assert run([*words, "--set", "fit.steps=2", "--start", "none", *cache]) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert run(["eval", str(out / "weights"), "--data", data, "--json", *cache]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["tile"] == [1024, 1024]
    assert 0 <= scores["miou"] <= 1
    assert not list((tmp_path / "cache").rglob("images.u8"))
    assert run(["eval", str(out / "weights"), "--data", data, "--tile", "128x128", "--json", *cache]) == 0
    assert json.loads(capsys.readouterr().out)["tile"] == [128, 128]


def test_a_large_picture_of_other_bands_is_labelled_in_tiles_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from segtailor.predicting import batch
    from tests.serving.test_app import five_bands

    predictor = five_bands().predictor
    path = tiled_tiff(tmp_path / "a.tif", pixels_of(0, 5), 32)
    whole = batch._in_bands(predictor, path)
    monkeypatch.setattr(batch, "LARGE_PIXELS", 5000)
    rows = batch._in_bands(predictor, path)
    assert whole is not None
    assert isinstance(rows, large.WindowRows)
    np.testing.assert_array_equal(rows.read(20, 70), whole.read(20, 70))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes")
@pytest.mark.timeout(20)
def test_pipes_among_pictures_and_masks_are_told_and_nobody_waits_for_them(tmp_path: Path) -> None:
    text = write_set(tmp_path / "set")
    (tmp_path / "set/classes.yaml").unlink()
    for name in ("images/train/p0.tif", "masks/train/p1.tif"):
        (tmp_path / "set" / name).unlink()
        os.mkfifo(tmp_path / "set" / name)
    found = {(one.kind, Path(one.file).name) for one in check(locate(text)).findings}
    assert {("unreadable", "p0.tif"), ("unreadable", "p1.tif")} <= found
    with pytest.raises(DataProblem, match="not a regular file"):
        bands.BandWindows(tmp_path / "set/images/train/p0.tif", bands=3)
    for number in range(3):
        save(tmp_path / "bands/images" / f"p{number}", pixels_of(number, 5), "tiles")
        save(tmp_path / "bands/masks" / f"p{number}", labels_of(number), "strips")
    (tmp_path / "bands/images/p1.tif").unlink()
    os.mkfifo(tmp_path / "bands/images/p1.tif")
    findings = check(locate(f"folder:{tmp_path / 'bands'}?bands=5&count=4")).findings
    assert ("unreadable", "p1.tif") in {(one.kind, Path(one.file).name) for one in findings}


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """Change some bytes of a file, most of them near its ends, where headers and directories are, or cut it."""
    data = bytearray(content)
    for _ in range(int(rng.integers(1, 6))):
        near = int(rng.integers(0, 60))
        place = [near, len(data) - 1 - int(rng.integers(0, 400)), int(rng.integers(len(data)))][
            rng.integers(3)
        ]
        data[max(0, place)] = int(rng.integers(256))
    return bytes(data[: int(rng.integers(len(data)))] if rng.random() < 0.2 else data)


@pytest.mark.parametrize("form", ["tiles", "strips", "npy"])
def test_damaged_files_are_explained_or_read_and_nothing_else_happens(form: str, tmp_path: Path) -> None:
    rng, read, told = np.random.default_rng(5), 0, []
    channels = 3 if form == "strips" else 5
    path = save(tmp_path / "a", pixels_of(0, channels), form)
    mask = save(tmp_path / "m", labels_of(0), "tiles" if form == "tiles" else "strips")
    meaning = Legend(classes=tuple(LegendClass(name=name) for name in "abcd")).label_map()
    contents = path.read_bytes(), mask.read_bytes()
    for _ in range(150):
        for file, content in zip((path, mask), contents, strict=True):
            file.write_bytes(damaged(content, rng))
        for attempt in (
            lambda: uploaded_bands(path.read_bytes(), bands=channels, limit=10**6),
            lambda: bands.BandWindows(path, bands=channels).read(20, 60, 30, 99),
            lambda: large.FileWindows(path=path, size=SIZE).read(20, 60, 30, 99),
            lambda: large.MaskWindows(path=mask, size=SIZE, labels=meaning).read(20, 60, 30, 99),
        ):
            try:
                attempt()
                read += 1
            except UserError as problem:
                told.append(str(problem))
    assert read > 50
    assert len(told) > 50
    assert all(
        "cannot be read" in text or "changed while" in text or "memory" in text or "holds" in text
        for text in told
    )

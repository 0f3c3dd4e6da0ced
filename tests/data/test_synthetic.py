"""The synthetic street scenes: deterministic, any size, complete, honest about depth."""

from __future__ import annotations

import pickle
import time
from collections.abc import Mapping

import numpy as np
import pytest

from segtailor.core.errors import DataProblem, UnknownName
from segtailor.data.scene import CLASSES, render
from segtailor.data.scene.canvas import BUILDING, CAR, PERSON, ROAD, SIDEWALK, SKY, Camera, Canvas, noise_tile
from segtailor.data.synthetic import Synthetic, from_options
from segtailor.testing.datasets import check_dataset

SMALL = (32, 64)


def test_synthetic_passes_the_conformance_kit() -> None:
    check_dataset(Synthetic(images={"train": 3, "val": 2}, size=SMALL))


def test_equal_seed_split_and_index_give_equal_bytes() -> None:
    first, second = render(3, 5, SMALL, split="val"), render(3, 5, SMALL, split="val")
    for one, other in zip(first, second, strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("change", [{"seed": 4}, {"index": 6}, {"split": "train"}])
def test_another_seed_split_or_index_gives_another_scene(change: Mapping[str, int | str]) -> None:
    arguments: dict[str, int | str] = {"seed": 3, "index": 5, "split": "val"}
    scene = render(**arguments, size=SMALL)  # type: ignore[arg-type]
    other = render(**{**arguments, **change}, size=SMALL)  # type: ignore[arg-type]
    assert (scene.labels != other.labels).mean() > 0.05


@pytest.mark.parametrize("size", [(16, 16), (17, 93), (96, 32), (45, 45)])
def test_any_size_renders_with_valid_shapes_types_and_labels(size: tuple[int, int]) -> None:
    for index in range(8):
        image, labels, depth = render(0, index, size)
        assert image.shape == (*size, 3)
        assert labels.shape == depth.shape == size
        assert (image.dtype, labels.dtype, depth.dtype) == (np.uint8, np.uint8, np.float32)
        assert labels.max() < len(CLASSES)


def test_the_same_street_appears_at_every_resolution() -> None:
    for index in range(12):
        small, large = render(1, index, (24, 48)).labels, render(1, index, (96, 192)).labels
        assert (small == large[2::4, 2::4]).mean() > 0.85


def test_every_class_occurs_and_the_small_ones_stay_small() -> None:
    labels = np.stack([render(0, index, (48, 96)).labels for index in range(30)])
    shares = np.bincount(labels.ravel(), minlength=len(CLASSES)) / labels.size
    assert (shares > 5e-4).all()
    assert shares.max() < 0.5
    assert shares[[CLASSES.index(name) for name in ("pole", "sign", "person", "bicycle")]].max() < 0.04


def test_depth_is_infinite_exactly_for_sky_and_positive_elsewhere() -> None:
    for index in range(6):
        scene = render(2, index, SMALL)
        assert np.array_equal(np.isinf(scene.depth), scene.labels == SKY)
        assert scene.depth.min() > 0


def test_ground_depth_grows_towards_the_horizon() -> None:
    for index in range(6):
        scene = render(0, index, (64, 128))
        ground = (scene.labels == ROAD) | (scene.labels == SIDEWALK)
        both = ground[1:] & ground[:-1]
        assert (scene.depth[:-1] > scene.depth[1:])[both].all()


def test_nearer_paint_covers_farther_paint_in_any_order() -> None:
    camera = Camera(size=(32, 32), focal=32.0, centre=16.0, height=1.5, horizon=np.full(32, 16.0, np.float32))
    near, far = camera.facing((-1, 1), (0, 2), 4.0), camera.facing((-2, 2), (0, 3), 8.0)
    assert near is not None
    assert far is not None
    painted = []
    for order in ((near, far), (far, near)):
        canvas = Canvas(camera)
        for patch in order:
            inside = (patch.height >= 0) & (patch.height <= 3)
            canvas.paint(patch, inside, (1.0, 0.0, 0.0), CAR if patch is near else BUILDING)
        painted.append(canvas.labels)
    assert np.array_equal(painted[0], painted[1])
    assert {CAR, BUILDING} <= set(np.unique(painted[0]))


def test_a_person_of_known_height_and_distance_covers_the_rows_that_optics_says() -> None:
    camera = Camera(size=(64, 64), focal=64.0, centre=32.0, height=1.5, horizon=np.full(64, 20.0, np.float32))
    patch = camera.facing((-0.5, 0.5), (0, 2), 8.0)
    assert patch is not None
    canvas = Canvas(camera)
    canvas.paint(patch, (patch.height >= 0) & (patch.height <= 2), (0, 0, 0), PERSON)
    rows = np.flatnonzero((canvas.labels == PERSON).any(1))
    assert (rows[0], rows[-1] + 1) == (16, 32)  # 20 + (1.5 - 2) * 64 / 8 and 20 + 1.5 * 64 / 8
    assert canvas.depth[20, 32] == 8


def test_what_is_behind_the_camera_or_beside_the_view_has_no_pixels() -> None:
    camera = Camera(size=(8, 8), focal=8.0, centre=4.0, height=1.5, horizon=np.full(8, 4.0, np.float32))
    assert camera.facing((-1, 1), (0, 2), -3.0) is None
    assert camera.facing((50, 51), (0, 2), 5.0) is None
    assert camera.beside(2.0, (0, 2), (-9.0, -1.0)) is None


def test_colour_alone_does_not_tell_the_class() -> None:
    """The best per-pixel guess from quantised colour, fitted on one half, is far from the truth on the other."""
    scenes = [render(0, index, (48, 96)) for index in range(24)]
    image = np.stack([scene.image for scene in scenes])
    colours = (image // 32).astype(int) @ np.array([64, 8, 1])
    labels = np.stack([scene.labels for scene in scenes]).astype(int)
    table = np.zeros((512, len(CLASSES)), int)
    np.add.at(table, (colours[:12].ravel(), labels[:12].ravel()), 1)
    guess, truth = table.argmax(1)[colours[20:]], labels[20:]
    ious = [
        ((guess == k) & (truth == k)).sum() / max(((guess == k) | (truth == k)).sum(), 1)
        for k in range(len(CLASSES))
    ]
    assert np.mean(ious) < 0.3


def test_noise_tiles_without_a_seam() -> None:
    tile = noise_tile()
    inner = np.abs(np.diff(tile, axis=0)).mean()
    assert np.abs(tile[0] - tile[-1]).mean() < 1.3 * inner


def test_rendering_keeps_pace_with_training() -> None:
    render(0, 0, (128, 256))
    best = min(_seconds(index) for index in range(8))
    assert best < 0.15  # typically 0.017; generous, since machines are shared


def _seconds(index: int) -> float:
    start = time.perf_counter()
    render(0, index, (128, 256))
    return time.perf_counter() - start


def test_stamps_change_with_seed_size_and_split() -> None:
    base = Synthetic(images={"train": 1, "val": 1}, size=SMALL)
    other = Synthetic(images={"train": 1, "val": 1}, size=SMALL, seed=1)
    wide = Synthetic(images={"train": 1, "val": 1}, size=(32, 65))
    fingerprints = {
        dataset.samples(split)[0].fingerprint for dataset in (base, other, wide) for split in dataset.splits
    }
    assert len(fingerprints) == 6


def test_the_dataset_travels_to_other_processes() -> None:
    dataset = from_options({"train": "2", "size": "16x32"})
    assert pickle.loads(pickle.dumps(dataset)) == dataset


def test_an_unknown_split_lists_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="val"):
        Synthetic().samples("vall")


def test_options_give_splits_size_and_seed() -> None:
    dataset = from_options({"size": "64x128", "train": "7", "val": "3", "seed": "9"})
    assert (dict(dataset.images), dataset.size, dataset.seed) == ({"train": 7, "val": 3}, (64, 128), 9)
    assert from_options({}) == Synthetic()
    assert from_options({"test": "5"}).splits == ("train", "val", "test")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": "64"}, "HEIGHTxWIDTH"),
        ({"size": "8x128"}, "16 to"),
        ({"size": "0x0"}, "HEIGHTxWIDTH"),
        ({"size": "8x8"}, "16 to"),
        ({"train": "many"}, "whole number"),
        ({"train": "0"}, "at least 1 image"),
        ({"seed": "-1"}, "seed: -1 is too small"),
        ({"tain": "5"}, "unknown option 'tain'"),
    ],
)
def test_wrong_options_say_what_to_write(options: Mapping[str, str], words: str) -> None:
    with pytest.raises(DataProblem, match=words):
        from_options(options)


def test_no_splits_or_odd_split_names_are_refused() -> None:
    with pytest.raises(DataProblem, match="at least one"):
        Synthetic(images={})
    with pytest.raises(DataProblem, match="not a name for a split"):
        Synthetic(images={"../x": 1})

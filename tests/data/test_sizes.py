from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from segtailor.core.errors import DataProblem
from segtailor.data.cache import open_pixels
from segtailor.data.dataset import Pair, resize_pair
from segtailor.data.doctor import check
from segtailor.data.locate import locate


def street(height: int, width: int) -> Pair:
    """Left half dark and class 0, right half bright and class 7; one bright pixel column of class 255 between."""
    image = np.zeros((height, width, 3), dtype=np.uint8)
    labels = np.zeros((height, width), dtype=np.uint8)
    image[:, width // 2 :], labels[:, width // 2 :] = 200, 7
    labels[:, width // 2] = 255
    return Pair(image, labels)


def written(folder: Path, pair: Pair, count: int = 4) -> Path:
    for split in ("train", "val"):
        for index in range(count):
            for place, array in (("images", pair.image), ("masks", pair.labels % 2)):
                file = folder / place / split / f"{split}{index}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(array).save(file)
    return folder


@pytest.mark.parametrize("size", [(12, 20), (7, 13), (48, 80), (1, 1), (24, 41)])
def test_labels_stay_labels_and_images_stay_between_their_values(size: tuple[int, int]) -> None:
    image, labels = resize_pair(street(24, 40), size)
    assert image.shape == (*size, 3)
    assert labels.shape == size
    assert image.dtype == labels.dtype == np.uint8
    assert set(np.unique(labels)) <= {0, 7, 255}
    assert image.max() <= 200


def test_halving_takes_every_second_pixel_of_labels_and_averages_images() -> None:
    rng = np.random.default_rng(0)
    pair = Pair(
        rng.integers(0, 255, (8, 12, 3), dtype=np.uint8), rng.integers(0, 11, (8, 12)).astype(np.uint8)
    )
    image, labels = resize_pair(pair, (4, 6))
    np.testing.assert_array_equal(labels, pair.labels[1::2, 1::2])
    assert abs(float(image.mean()) - float(pair.image.mean())) < 3


def test_the_size_that_it_has_changes_nothing() -> None:
    pair = street(9, 11)
    assert resize_pair(pair, (9, 11)) is pair
    assert resize_pair(pair, None) is pair


def test_depths_keep_their_values() -> None:
    depth = np.linspace(0, 9, 60, dtype=np.float32).reshape(6, 10)
    _, smaller = resize_pair(Pair(np.zeros((6, 10, 3), np.uint8), depth), (3, 5))
    assert smaller.dtype == np.float32
    assert set(smaller.flatten()) <= set(depth.flatten())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("big", "size 'big' is not HEIGHTxWIDTH"),
        ("0x480", "is not HEIGHTxWIDTH"),
        ("99999x480", "larger than any picture; give sides of 1 to 16384"),
        ("16385x480", "larger than any picture; give sides of 1 to 16384"),
    ],
)
def test_a_wrong_size_is_told_before_anything_is_read(tmp_path: Path, text: str, message: str) -> None:
    folder = written(tmp_path / "set", street(8, 8), count=1)
    with pytest.raises(DataProblem, match=message):
        locate(f"folder:{folder}?size={text}&count=2")


def test_a_dataset_brings_all_its_samples_to_one_size(tmp_path: Path) -> None:
    folder = written(tmp_path / "set", street(24, 40))
    small = open_pixels(locate(f"folder:{folder}?size=12x20&count=2"), "train", tmp_path / "cache")
    own = open_pixels(locate(f"folder:{folder}?count=2"), "train", tmp_path / "cache")
    assert {tuple(size) for size in small.sizes.tolist()} == {(12, 20)}
    assert {tuple(size) for size in own.sizes.tolist()} == {(24, 40)}
    assert small.fingerprint != own.fingerprint


def test_the_doctor_looks_at_the_size_that_is_asked_for(tmp_path: Path) -> None:
    thin = street(24, 40)
    thin.labels[:] = 0
    thin.labels[:, 20] = 1  # halving takes the odd columns
    folder = written(tmp_path / "set", thin)
    own, half = (check(locate(f"folder:{folder}?count=2{more}")) for more in ("", "&size=12x20"))
    shares = [diagnosis.splits["train"].shares for diagnosis in (own, half)]
    assert list(shares[0].values())[1] > 0
    assert list(shares[1].values())[1] == 0

"""Predictions of a split: figures agree with those of training, examples are the extremes, pictures show errors."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from segtailor.core.errors import DataProblem, UserError
from segtailor.core.task import IGNORE, Task
from segtailor.data.dataset import Pair
from segtailor.report.document import Picture
from segtailor.report.inspecting import (
    MAX_SIDE_PIXELS,
    WRONG,
    coloured,
    confusion,
    error_map,
    extremes,
    image_quality,
    inspect,
    picture,
    quality_of,
)
from segtailor.tasks.segmentation.metrics import scores

TASK = Task(classes=("a", "b", "c", "never"))
PALETTE = ((10, 20, 30), (200, 0, 0), (0, 0, 250))


class Few:
    """Pictures whose first pixel says how many columns a prediction gets wrong."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def pair(self, index: int) -> Pair:
        labels = np.random.default_rng(index).integers(0, 3, (8, 12)).astype(np.uint8)
        labels[0, 0] = IGNORE
        return Pair(np.repeat(labels[..., None], 3, axis=2) + np.uint8(0) * index, labels)


def predict(image: np.ndarray) -> np.ndarray:
    guess = image[..., 0].copy()
    guess[guess == IGNORE] = 0
    wrong = int(image[..., 0].astype(int).sum()) % 5
    guess[:, :wrong] = 0
    return guess


def test_figures_are_those_of_training() -> None:
    rng = np.random.default_rng(1)
    matrix = rng.integers(0, 50, (4, 4))
    matrix[3] = matrix[:, 3] = 0
    found, expected = quality_of(matrix, task=TASK, images=2), scores(matrix)
    assert found.miou == pytest.approx(expected.miou)
    assert [row.iou for row in found.classes] == pytest.approx(list(expected.iou))
    assert [row.accuracy for row in found.classes] == pytest.approx(list(expected.accuracy))
    assert sum(row.share or 0 for row in found.classes) == pytest.approx(1)


def test_worst_and_best_are_shown_with_their_names() -> None:
    pictures = Few(7)
    found = inspect(predict, pictures, task=TASK, names=[f"n{index}" for index in range(7)], examples=2)
    assert [one.kind for one in found.pictures] == ["worst", "worst", "best", "best"]
    assert (
        found.pictures[0].quality
        <= found.pictures[1].quality
        <= found.pictures[3].quality
        <= found.pictures[2].quality
    )
    assert all(one.name.startswith("n") for one in found.pictures)
    assert np.sum(found.confusion) == 7 * (8 * 12 - 1)


def test_ignored_pixels_do_not_count() -> None:
    labels = np.array([[0, 1, IGNORE]], dtype=np.uint8)
    assert confusion(labels, np.array([[1, 1, 0]], dtype=np.uint8), classes=2).tolist() == [[0, 1], [0, 1]]


def test_no_pictures_is_said() -> None:
    with pytest.raises(DataProblem, match="no picture"):
        inspect(predict, Few(0), task=TASK)


def pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("RGB"))


def test_labels_take_the_colours_of_their_classes_and_ignored_ones_are_grey() -> None:
    labels = np.array([[0, 1], [2, IGNORE]], dtype=np.uint8)
    found = pixels(coloured(labels, PALETTE))
    assert found[0, 0].tolist() == [10, 20, 30]
    assert found[1, 0].tolist() == [0, 0, 250]
    assert len(set(found[1, 1].tolist())) == 1


def test_the_error_marks_exactly_the_wrong_labelled_pixels() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, (20, 30)).astype(np.uint8)
    labels[0] = IGNORE
    guess = np.where(rng.random((20, 30)) < 0.2, (labels + 1) % 3, labels).astype(np.uint8)
    image = rng.integers(0, 256, (20, 30, 3)).astype(np.uint8)
    marked = (pixels(error_map(image, labels, guess)) == WRONG).all(axis=2)
    assert (marked == ((labels != guess) & (labels != IGNORE))).all()


def test_the_quality_of_an_image_is_the_mean_over_classes_seen_or_guessed() -> None:
    labels = np.array([[0, 0, 1, IGNORE]], dtype=np.uint8)
    guess = np.array([[0, 2, 1, 0]], dtype=np.uint8)
    assert image_quality(labels, guess) == pytest.approx((1 / 2 + 1 + 0) / 3)
    assert image_quality(np.full((2, 2), IGNORE, np.uint8), np.zeros((2, 2), np.uint8)) == 0.0


@pytest.mark.parametrize(("count", "each"), [(0, 0), (1, 1), (2, 1), (5, 2), (100, 3)])
def test_worst_and_best_never_overlap(count: int, each: int) -> None:
    qualities = [float((7 * n) % 101) for n in range(count)]
    worst, best = extremes(qualities, 3)
    assert not set(worst) & set(best)
    assert len(worst) == each
    assert [qualities[index] for index in worst] == sorted(qualities)[:each]
    assert [qualities[index] for index in best] == sorted(qualities, reverse=True)[: len(best)]


def test_pictures_are_small_and_of_one_size() -> None:
    shape = (900, 1800)
    found = picture(
        "a",
        "worst",
        image=np.zeros((*shape, 3), np.uint8),
        labels=np.zeros(shape, np.uint8),
        predicted=np.ones(shape, np.uint8),
        palette=PALETTE,
    )
    assert found.quality == 0.0
    sizes = set()
    for uri in (found.image, found.truth, found.prediction, found.error):
        sizes.add(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).size)
    assert sizes == {(MAX_SIDE_PIXELS, MAX_SIDE_PIXELS // 2)}


def test_even_noise_stays_small() -> None:
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (720, 720, 3)).astype(np.uint8)
    labels, guess = (rng.integers(0, 20, (720, 720)).astype(np.uint8) for _ in range(2))
    found = picture("a", "worst", image=noise, labels=labels, predicted=guess, palette=PALETTE)
    assert sum(map(len, (found.image, found.truth, found.prediction, found.error))) < 400_000


def test_arrays_of_different_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="sizes differ"):
        picture(
            "a", "best", image=np.zeros((4, 4, 3), np.uint8), labels=np.zeros((4, 4), np.uint8),
            predicted=np.zeros((2, 4), np.uint8), palette=PALETTE,
        )  # fmt: skip


@pytest.mark.parametrize(
    "uri",
    ["https://example.org/a.png", "data:image/svg+xml;base64,AAAA", 'data:image/png;base64,"onload=', ""],
)
def test_what_is_no_picture_is_refused(uri: str) -> None:
    with pytest.raises(UserError, match="data URI"):
        Picture(name="a", kind="best", quality=0.5, image=uri, truth=uri, prediction=uri, error=uri)

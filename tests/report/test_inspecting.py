"""Looking at predictions: figures agree with those of training, examples are the extremes."""

from __future__ import annotations

import numpy as np
import pytest

from segtailor.core.errors import DataProblem
from segtailor.core.task import IGNORE, Task
from segtailor.data.dataset import Pair
from segtailor.report.inspecting import confusion, inspect, quality_of
from segtailor.tasks.segmentation.metrics import scores

TASK = Task(classes=("a", "b", "c", "never"))


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

"""Metrics: the published check, torchmetrics on random cases, absent classes."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix, MulticlassJaccardIndex

from segtailor.tasks.segmentation.metrics import Confusion, reward, scores

PUBLISHED = np.array(
    [[900, 20, 10, 70, 0], [30, 160, 0, 10, 0], [20, 5, 75, 0, 0], [40, 0, 10, 250, 0], [0, 0, 0, 0, 0]]
)


def test_reward_meets_the_specified_numbers() -> None:
    result = scores(PUBLISHED, without=(0,))
    assert result.miou == pytest.approx(0.664669, abs=1e-6)
    assert result.mean_accuracy == pytest.approx(0.794444, abs=1e-6)
    assert result.fwiou == pytest.approx(0.670151, abs=1e-6)
    assert reward(PUBLISHED) == pytest.approx(0.707317, abs=1e-6)


def test_a_class_that_is_predicted_but_absent_lowers_the_reward() -> None:
    matrix = PUBLISHED.copy()
    matrix[0, 0] -= 10
    matrix[0, 4] += 10
    result = scores(matrix, without=(0,))
    assert result.miou == pytest.approx(0.498501, abs=1e-6)
    assert result.mean_accuracy == pytest.approx(0.794444, abs=1e-6)
    assert result.fwiou == pytest.approx(0.670151, abs=1e-6)
    assert reward(matrix) == pytest.approx(0.642640, abs=1e-6)
    assert result.iou[4] == 0.0
    assert result.accuracy[4] is None


@pytest.mark.parametrize("seed", range(6))
def test_figures_agree_with_torchmetrics(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    classes, present = 7, 4 + seed % 4  # some classes are neither in truth nor in prediction
    confusion = Confusion(classes)
    references = {
        "miou": MulticlassJaccardIndex(classes, average="macro", ignore_index=255),
        "fwiou": MulticlassJaccardIndex(classes, average="weighted", ignore_index=255),
        "mean_accuracy": MulticlassAccuracy(classes, average="macro", ignore_index=255),
        "pixel_accuracy": MulticlassAccuracy(classes, average="micro", ignore_index=255),
    }
    matrix = MulticlassConfusionMatrix(classes, ignore_index=255)
    for _ in range(3):
        labels = torch.randint(0, present, (2, 24, 32), generator=generator)
        predicted = torch.where(
            torch.rand(labels.shape, generator=generator) < 0.6,
            labels,
            torch.randint(0, present, labels.shape, generator=generator),
        )
        labels[torch.rand(labels.shape, generator=generator) < 0.1] = 255
        confusion.add(predicted, labels.byte())
        for reference in (*references.values(), matrix):
            reference.update(predicted, labels)
    assert torch.equal(confusion.matrix, matrix.compute())
    result = confusion.scores()
    for name, reference in references.items():
        assert getattr(result, name) == pytest.approx(float(reference.compute()), abs=1e-5), name
    assert result.images == 6


def test_a_class_absent_everywhere_is_left_out() -> None:
    confusion = Confusion(3)
    confusion.add(torch.tensor([[[0, 1]]]), torch.tensor([[[0, 1]]]))
    result = confusion.scores()
    assert (result.miou, result.mean_accuracy, result.iou) == (1.0, 1.0, (1.0, 1.0, None))


def test_ignored_and_foreign_labels_do_not_count() -> None:
    confusion = Confusion(2)
    confusion.add(torch.tensor([[[0, 1, 1, 0]]]), torch.tensor([[[0, 255, 254, 2]]], dtype=torch.uint8))
    assert confusion.matrix.tolist() == [[1, 0], [0, 0]]


def test_nothing_labelled_gives_zeros_that_fit_into_json() -> None:
    confusion = Confusion(2)
    confusion.add(torch.zeros(1, 2, 2, dtype=torch.long), torch.full((1, 2, 2), 255))
    document = confusion.scores().document(("a", "b"))
    assert document["miou"] == 0.0
    assert json.loads(json.dumps(document, allow_nan=False))["per_class"]["a"] == {
        "iou": None,
        "accuracy": None,
    }


def test_shapes_that_differ_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="predicted"):
        Confusion(2).add(torch.zeros(1, 2, 2, dtype=torch.long), torch.zeros(1, 2, 3, dtype=torch.long))

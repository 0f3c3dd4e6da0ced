"""Quality of predicted labels from one confusion matrix, accumulated where the predictions are.

Conventions: rows are ground truth. A class with neither ground truth nor prediction is left out everywhere. A class
that is predicted but absent from the ground truth counts as IoU 0 in mIoU, has weight 0 in fwIoU and no accuracy,
so it is left out of the mean accuracy. All figures are fractions from 0 to 1; with no labelled pixel they are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segtailor.core.codec import Json


@dataclass(frozen=True, kw_only=True)
class SegmentationScores:
    """Figures of one evaluation; per class `None` where the class has no such figure."""

    miou: float
    fwiou: float
    mean_accuracy: float
    pixel_accuracy: float
    iou: tuple[float | None, ...]
    accuracy: tuple[float | None, ...]
    images: int = 0

    @property
    def reward(self) -> float:
        """Geometric mean of mIoU, fwIoU and mean accuracy (Nekrasov et al., CVPR 2019, auxiliary cells)."""
        return float((self.miou * self.fwiou * self.mean_accuracy) ** (1 / 3))

    @property
    def quality(self) -> float:
        """The headline figure, mIoU."""
        return self.miou

    def figures(self) -> dict[str, float]:
        """Return the four averages by name."""
        return {
            "miou": self.miou,
            "fwiou": self.fwiou,
            "mean_accuracy": self.mean_accuracy,
            "pixel_accuracy": self.pixel_accuracy,
        }

    def document(self, classes: Sequence[str]) -> dict[str, Json]:
        """Return the JSON form with class names."""
        return {
            **self.figures(),
            "per_class": {
                name: {"iou": self.iou[k], "accuracy": self.accuracy[k]} for k, name in enumerate(classes)
            },
            "images": self.images,
        }


class Confusion:
    """Counts of (ground truth, prediction) over pixels; labels of `classes` or more, such as 255, do not count."""

    def __init__(self, classes: int, device: torch.device | None = None) -> None:
        self.classes = classes
        self.images = 0
        self.matrix = torch.zeros((classes, classes), dtype=torch.int64, device=device)

    def add(self, predicted: Tensor, labels: Tensor) -> None:
        """Count a batch of integer label maps (images, height, width) of equal shape."""
        if predicted.shape != labels.shape:
            raise ValueError(
                f"predicted labels are {tuple(predicted.shape)}, true ones {tuple(labels.shape)}"
            )
        cells = self.classes**2
        truth = labels.long()
        cell = torch.where(truth < self.classes, truth * self.classes + predicted, cells)
        counts = torch.bincount(cell.flatten(), minlength=cells + 1)[
            :cells
        ]  # without the bin of ignored pixels
        self.matrix += counts.view_as(self.matrix)
        self.images += len(labels)

    def merge(self, add_up: Callable[[Tensor], Tensor]) -> None:
        """Add the counts of all processes."""
        self.matrix = add_up(self.matrix)

    def scores(self, *, without: Collection[int] = ()) -> SegmentationScores:
        """Return the figures over all classes but those `without`."""
        return scores(self.matrix.cpu().numpy(), without=without, images=self.images)


def scores(
    matrix: NDArray[np.int64], *, without: Collection[int] = (), images: int = 0
) -> SegmentationScores:
    """Return the figures of a confusion matrix; classes in `without` stay in it but out of the averages."""
    hit = np.diag(matrix).astype(float)
    truth, predicted = matrix.sum(1).astype(float), matrix.sum(0).astype(float)
    kept = np.array([k not in set(without) for k in range(len(matrix))])
    seen, real = kept & (truth + predicted > 0), kept & (truth > 0)
    iou = np.divide(hit, truth + predicted - hit, out=np.zeros_like(hit), where=truth + predicted > 0)
    accuracy = np.divide(hit, truth, out=np.zeros_like(hit), where=truth > 0)
    return SegmentationScores(
        miou=_mean(iou[seen]),
        fwiou=_mean(iou[real], truth[real]),
        mean_accuracy=_mean(accuracy[real]),
        pixel_accuracy=_mean(accuracy[real], truth[real]),
        iou=tuple(float(value) if present else None for value, present in zip(iou, seen, strict=True)),
        accuracy=tuple(
            float(value) if present else None for value, present in zip(accuracy, real, strict=True)
        ),
        images=images,
    )


def reward(matrix: NDArray[np.int64], *, background: int = 0) -> float:
    """Return the search reward of auxiliary cells: the background is left out of all three averages."""
    return scores(matrix, without=(background,)).reward


def _mean(values: NDArray[np.float64], weights: NDArray[np.float64] | None = None) -> float:
    return float(np.average(values, weights=weights)) if len(values) else 0.0

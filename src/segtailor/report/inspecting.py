"""Look at what a network predicts: confusion, worst and best pictures. Who predicts is the caller's choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from segtailor.core.errors import DataProblem
from segtailor.core.task import Task
from segtailor.data.dataset import Pair
from segtailor.report.document import ClassQuality, Fact, Picture, Quality
from segtailor.report.numbers import percent
from segtailor.report.pictures import extremes, image_quality, picture

Predict: TypeAlias = Callable[[NDArray[np.uint8]], NDArray[np.uint8]]  # one image to labels of its own size
EXAMPLES = 3  # worst pictures, and as many best ones


class Pictures(Protocol):
    """Decoded samples (`data.cache.Pixels`)."""

    def __len__(self) -> int: ...

    def pair(self, index: int) -> Pair:
        """Return one sample."""


def inspect(
    predict: Predict,
    pictures: Pictures,
    *,
    task: Task,
    names: Sequence[str] = (),
    examples: int = EXAMPLES,
    note: str = "",
) -> Quality:
    """Predict every picture and return all that can be said about quality; `names` are those of the samples."""
    if not len(pictures):
        raise DataProblem("there is no picture to look at; choose a split that has some.")
    matrix = np.zeros((task.outputs, task.outputs), dtype=np.int64)
    qualities = []
    for index in range(len(pictures)):
        pair = pictures.pair(index)
        predicted = predict(pair.image)
        matrix += confusion(pair.labels, predicted, classes=task.outputs)
        qualities.append(image_quality(pair.labels, predicted))
    worst, best = extremes(qualities, examples)
    chosen: list[Picture] = []
    kinds: tuple[tuple[Literal["worst", "best"], list[int]], ...] = (("worst", worst), ("best", best))
    for kind, indices in kinds:
        for index in indices:
            pair = pictures.pair(index)
            chosen.append(
                picture(
                    names[index] if index < len(names) else f"picture {index}",
                    kind,
                    image=np.asarray(pair.image),
                    labels=np.asarray(pair.labels),
                    predicted=predict(pair.image),
                    palette=task.palette,
                    quality=qualities[index],
                )
            )
    return quality_of(matrix, task=task, images=len(pictures), pictures=tuple(chosen), note=note)


def confusion(labels: NDArray[np.uint8], predicted: NDArray[np.uint8], *, classes: int) -> NDArray[np.int64]:
    """Count (truth, prediction) over pixels; labels of `classes` or more do not count."""
    valid = labels < classes
    cells = labels[valid].astype(np.int64) * classes + predicted[valid]
    return np.bincount(cells, minlength=classes**2).reshape(classes, classes)


def quality_of(
    matrix: NDArray[np.int64], *, task: Task, images: int, pictures: tuple[Picture, ...] = (), note: str = ""
) -> Quality:
    """Return the figures of a confusion matrix, by the conventions of `tasks.segmentation.metrics`."""
    hit = np.diag(matrix).astype(float)
    truth, guessed = matrix.sum(1).astype(float), matrix.sum(0).astype(float)
    either = truth + guessed - hit
    iou = [float(h / e) if e else None for h, e in zip(hit, either, strict=True)]
    known = [value for value in iou if value is not None]
    labelled = truth.sum() or 1.0
    miou = sum(known) / len(known) if known else 0.0
    return Quality(
        classes=tuple(
            ClassQuality(
                name=name,
                iou=iou[index],
                accuracy=float(hit[index] / truth[index]) if truth[index] else None,
                share=float(truth[index] / labelled),
                colour=task.palette[index],
            )
            for index, name in enumerate(task.classes)
        ),
        miou=miou,
        facts=(
            Fact(name="mIoU", value=percent(miou)),
            Fact(name="pixel accuracy", value=percent(float(hit.sum() / labelled))),
            Fact(name="images", value=str(images)),
        ),
        confusion=tuple(tuple(int(value) for value in row) for row in matrix),
        pictures=pictures,
        note=note,
    )

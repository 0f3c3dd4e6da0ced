"""Look at what a network predicts: confusion, worst and best pictures. Who predicts is the caller's choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from segtailor.core.errors import DataProblem
from segtailor.core.task import Task
from segtailor.report.document import ClassQuality, Fact, Picture, Quality
from segtailor.report.numbers import percent
from segtailor.report.pictures import drawn, extremes, image_quality, picture

if TYPE_CHECKING:
    from segtailor.data.dataset import Pair

Predict: TypeAlias = Callable[[NDArray[np.uint8]], NDArray[np.uint8]]  # one image to labels of its own size
Extreme: TypeAlias = Literal["worst", "best"]
EXAMPLES = 3  # worst pictures, and as many best ones
NOTHING = "there is no picture to look at; choose a split that has some."


class PictureSource(Protocol):
    """Decoded samples (`data.cache.Pixels`)."""

    def __len__(self) -> int: ...

    def pair(self, index: int) -> Pair:
        """Return one sample."""


def inspect(
    predict: Predict,
    pictures: PictureSource,
    *,
    task: Task,
    names: Sequence[str] = (),
    examples: int = EXAMPLES,
    note: str = "",
) -> Quality:
    """Predict every picture and return all that can be said about quality; `names` are those of the samples."""
    if not len(pictures):
        raise DataProblem(NOTHING)
    matrix = np.zeros((task.outputs, task.outputs), dtype=np.int64)
    qualities = []
    for index in range(len(pictures)):
        pair = pictures.pair(index)
        predicted = predict(pair.image)
        matrix += confusion(pair.labels, predicted, classes=task.outputs)
        qualities.append(image_quality(pair.labels, predicted))

    def example(index: int, kind: Extreme) -> Picture:
        pair = pictures.pair(index)
        return picture(
            _name(names, index),
            kind,
            image=np.asarray(pair.image),
            labels=np.asarray(pair.labels),
            predicted=predict(pair.image),
            palette=task.palette,
            quality=qualities[index],
        )

    chosen = _examples(qualities, examples, example)
    return quality_of(matrix, task=task, images=len(pictures), pictures=chosen, note=note)


class PictureExaminer(Protocol):
    """Judges and draws predictions of a task that has no classes (`segtailor.tasks.examining`)."""

    figure: str

    def judge(self, pair: Pair) -> float:
        """Predict a sample, count it, and return its quality."""

    def draw(self, pair: Pair) -> Sequence[Image.Image]:
        """Return image, truth, prediction and error."""

    def facts(self) -> Sequence[tuple[str, str]]:
        """Return name and value of the figures of all that was judged."""


def examine(
    examiner: PictureExaminer,
    pictures: PictureSource,
    *,
    names: Sequence[str] = (),
    examples: int = EXAMPLES,
    note: str = "",
) -> Quality:
    """Predict every picture of a task without classes, and return all that can be said about quality."""
    if not len(pictures):
        raise DataProblem(NOTHING)
    qualities = [examiner.judge(pictures.pair(index)) for index in range(len(pictures))]

    def example(index: int, kind: Extreme) -> Picture:
        return drawn(_name(names, index), kind, examiner.draw(pictures.pair(index)), quality=qualities[index])

    facts = [Fact(name=name, value=value) for name, value in examiner.facts()]
    return Quality(
        classes=(),
        facts=(*facts, Fact(name="images", value=str(len(pictures)))),
        pictures=_examples(qualities, examples, example),
        note=note,
        figure=examiner.figure,
    )


def _examples(
    qualities: Sequence[float], count: int, example: Callable[[int, Extreme], Picture]
) -> tuple[Picture, ...]:
    worst, best = extremes(qualities, count)
    return (*(example(index, "worst") for index in worst), *(example(index, "best") for index in best))


def _name(names: Sequence[str], index: int) -> str:
    return names[index] if index < len(names) else f"picture {index}"


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

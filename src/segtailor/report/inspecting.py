"""What a network predicts, on every picture of a split: confusion, figures, and the worst and best examples.

The caller says how to predict. Examples hold image, truth, prediction and error, small and as data URIs.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from segtailor.core.errors import DataProblem
from segtailor.core.task import IGNORE, Colour, Task
from segtailor.report.document import ClassQuality, Fact, Picture, Quality
from segtailor.report.numbers import percent

if TYPE_CHECKING:
    from segtailor.data.dataset import Pair

Labels: TypeAlias = NDArray[np.uint8]
Predict: TypeAlias = Callable[[NDArray[np.uint8]], Labels]  # one image to labels of its own size
Extreme: TypeAlias = Literal["worst", "best"]

EXAMPLES = 3  # worst pictures, and as many best ones
MAX_SIDE_PIXELS = 360  # of an example
MAX_COLOURS = 255  # of a palette image, besides the ignored label
IGNORED: Colour = (120, 120, 120)
WRONG: Colour = (213, 94, 0)  # vermilion: differs from grey for any colour vision
NO_PICTURES = "there is no picture to look at; choose a split that has some."


class PictureSource(Protocol):
    """Decoded samples (`data.cache.Pixels`)."""

    def __len__(self) -> int: ...

    def pair(self, index: int) -> Pair:
        """Return one sample."""


class PictureExaminer(Protocol):
    """Judges and draws predictions of a task that has no classes (`segtailor.tasks.examining`)."""

    figure: str

    def judge(self, pair: Pair) -> float:
        """Predict a sample, count it, and return its quality."""

    def draw(self, pair: Pair) -> Sequence[Image.Image]:
        """Return image, truth, prediction and error."""

    def facts(self) -> Sequence[tuple[str, str]]:
        """Return name and value of the figures over all samples that were judged."""


def inspect(
    predict: Predict,
    pictures: PictureSource,
    *,
    task: Task,
    names: Sequence[str] = (),
    examples: int = EXAMPLES,
    note: str = "",
) -> Quality:
    """Predict every picture of a segmentation and return its quality; `names` are those of the samples."""
    if not len(pictures):
        raise DataProblem(NO_PICTURES)
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
            image=shown(np.asarray(pair.image)),
            labels=np.asarray(pair.labels),
            predicted=predict(pair.image),
            palette=task.palette,
            quality=qualities[index],
        )

    chosen = _examples(qualities, examples, example)
    return quality_of(matrix, task=task, images=len(pictures), pictures=chosen, note=note)


def shown(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return what is drawn of a picture: colours, of more bands the first three, of fewer the first as grey."""
    return image[:, :, :3] if image.shape[2] >= 3 else np.repeat(image[:, :, :1], 3, axis=2)


def examine(
    examiner: PictureExaminer,
    pictures: PictureSource,
    *,
    names: Sequence[str] = (),
    examples: int = EXAMPLES,
    note: str = "",
) -> Quality:
    """Predict every picture of a task without classes and return its quality."""
    if not len(pictures):
        raise DataProblem(NO_PICTURES)
    qualities = [examiner.judge(pictures.pair(index)) for index in range(len(pictures))]

    def example(index: int, kind: Extreme) -> Picture:
        parts = examiner.draw(pictures.pair(index))
        return drawn_picture(_name(names, index), kind, parts, quality=qualities[index])

    facts = [Fact(name=name, value=value) for name, value in examiner.facts()]
    return Quality(
        classes=(),
        facts=(*facts, Fact(name="images", value=str(len(pictures)))),
        pictures=_examples(qualities, examples, example),
        note=note,
        figure=examiner.figure,
    )


def confusion(labels: Labels, predicted: Labels, *, classes: int) -> NDArray[np.int64]:
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


def image_quality(labels: Labels, predicted: Labels) -> float:
    """Return the mIoU of one image over the classes that it shows or was given; 0 where nothing is labelled."""
    valid = labels != IGNORE
    truth, guess = labels[valid].astype(np.int64), predicted[valid].astype(np.int64)
    if not truth.size:
        return 0.0
    both = np.bincount(truth[truth == guess], minlength=256)
    either = np.bincount(truth, minlength=256) + np.bincount(guess, minlength=256) - both
    return float(np.mean(both[either > 0] / either[either > 0]))


def extremes(qualities: Sequence[float], count: int = EXAMPLES) -> tuple[list[int], list[int]]:
    """Return the indices of the worst (worst first) and the best (best first), at most `count` each, none twice."""
    order = sorted(range(len(qualities)), key=lambda index: (qualities[index], index))
    each = min(count, len(order) // 2) if len(order) > 1 else len(order)
    return order[:each], [] if len(order) == 1 else order[::-1][:each]


def picture(
    name: str,
    kind: Extreme,
    *,
    image: NDArray[np.uint8],
    labels: Labels,
    predicted: Labels,
    palette: Sequence[Colour],
    quality: float | None = None,
) -> Picture:
    """Return one example; `quality` is its mIoU, counted here when left out. All arrays have one height and width."""
    if image.shape[:2] != labels.shape or labels.shape != predicted.shape:
        raise ValueError(
            f"sizes differ: image {image.shape}, labels {labels.shape}, predicted {predicted.shape}"
        )
    small, truth, guess = _fitted(image, labels, predicted)
    return Picture(
        name=name,
        kind=kind,
        quality=image_quality(labels, predicted) if quality is None else quality,
        image=_uri(Image.fromarray(small), "jpeg"),
        truth=_uri(coloured(truth, palette), "png"),
        prediction=_uri(coloured(guess, palette), "png"),
        error=_uri(error_map(small, truth, guess), "png"),
    )


def drawn_picture(name: str, kind: Extreme, parts: Sequence[Image.Image], *, quality: float) -> Picture:
    """Return one example from finished pictures: image, truth, prediction, error."""
    uris = []
    for part in parts:
        small = part.convert("RGB")
        small.thumbnail((MAX_SIDE_PIXELS, MAX_SIDE_PIXELS), Image.Resampling.LANCZOS)
        uris.append(_uri(small, "jpeg"))
    image, truth, prediction, error = uris
    return Picture(
        name=name, kind=kind, quality=quality, image=image, truth=truth, prediction=prediction, error=error
    )


def coloured(labels: Labels, palette: Sequence[Colour]) -> Image.Image:
    """Return labels in the colours of their classes; ignored pixels, and labels without a colour, are grey."""
    known = [tuple(colour) for colour in palette[:MAX_COLOURS]]
    image = Image.fromarray(labels, mode="P")
    image.putpalette([value for colour in [*known, *[IGNORED] * (256 - len(known))] for value in colour])
    return image


def error_map(image: NDArray[np.uint8], labels: Labels, predicted: Labels) -> Image.Image:
    """Return the image in pale grey with wrong pixels marked; ignored pixels stay pale."""
    grey = np.asarray(Image.fromarray(image).convert("L")).astype(np.float32)
    levels = (186 + grey * 0.25).astype(
        np.uint8
    ) // 8  # 32 levels are enough for a background, and compress well
    wrong = (labels != predicted) & (labels != IGNORE)
    marked = Image.fromarray(np.where(wrong, np.uint8(IGNORE), levels).astype(np.uint8), mode="P")
    steps = [min(8 * level, 255) for level in range(IGNORE) for _ in range(3)]
    marked.putpalette([*steps, *WRONG])
    return marked


def _examples(
    qualities: Sequence[float], count: int, example: Callable[[int, Extreme], Picture]
) -> tuple[Picture, ...]:
    worst, best = extremes(qualities, count)
    return (*(example(index, "worst") for index in worst), *(example(index, "best") for index in best))


def _name(names: Sequence[str], index: int) -> str:
    return names[index] if index < len(names) else f"picture {index}"


def _fitted(image: NDArray[np.uint8], *labels: Labels) -> tuple[NDArray[np.uint8], ...]:
    height, width = image.shape[:2]
    factor = min(1.0, MAX_SIDE_PIXELS / max(height, width))
    size = (max(1, round(width * factor)), max(1, round(height * factor)))
    small = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.LANCZOS))
    rest = [np.asarray(Image.fromarray(part).resize(size, Image.Resampling.NEAREST)) for part in labels]
    return (small, *rest)


def _uri(image: Image.Image, kind: Literal["png", "jpeg"]) -> str:
    stream = io.BytesIO()
    if kind == "jpeg":
        image.save(stream, "JPEG", quality=82)
    else:
        image.save(stream, "PNG", optimize=True)
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}"

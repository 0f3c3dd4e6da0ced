"""How the recommended network does on the validation split: figures per class, confusion, worst and best pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from segtailor.data.cache import open_pixels
from segtailor.data.locate import locate
from segtailor.nets.bundle import load_bundle
from segtailor.report.document import ClassQuality, Fact, Quality
from segtailor.report.pictures import extremes, image_quality, picture
from segtailor.training.metrics import Confusion

MOST_IMAGES = 500  # looked at one by one, evenly spread; the mIoU elsewhere is over all of them
SHOWN = 3  # worst and best pictures each


def quality_of(model: Path, data: str, *, cache: Path) -> Quality:
    """Predict the validation pictures one by one at their own size."""
    trained, dataset = load_bundle(model), locate(data)
    pixels = open_pixels(dataset, "val", cache)
    indices = np.linspace(0, len(pixels) - 1, min(len(pixels), MOST_IMAGES)).astype(int).tolist()
    confusion, qualities = Confusion(dataset.task.outputs), []
    for index in indices:
        pair = pixels.pair(index)
        found = trained.predict(np.asarray(pair.image))
        confusion.add(torch.from_numpy(found)[None].long(), torch.from_numpy(np.array(pair.labels))[None])
        qualities.append(image_quality(np.asarray(pair.labels), found))
    worst, best = extremes(qualities, count=SHOWN)
    pictures = []
    for kind, places in (("worst", worst), ("best", best)):
        for place in places:
            pair = pixels.pair(indices[place])
            image = np.asarray(pair.image)
            pictures.append(
                picture(
                    pixels.names[indices[place]],
                    kind,  # type: ignore[arg-type]
                    image=image,
                    labels=np.asarray(pair.labels),
                    predicted=trained.predict(image),
                    palette=dataset.task.palette,
                    quality=qualities[place],
                )
            )
    scores, matrix = confusion.scores(), confusion.matrix.numpy()
    shares = matrix.sum(1) / max(int(matrix.sum()), 1)
    return Quality(
        classes=tuple(
            ClassQuality(
                name=name,
                iou=scores.iou[place],
                accuracy=scores.accuracy[place],
                share=float(shares[place]),
                colour=dataset.task.palette[place],
            )
            for place, name in enumerate(dataset.task.classes)
        ),
        miou=scores.miou,
        facts=(
            Fact(name="pixel accuracy", value=f"{100 * scores.pixel_accuracy:.1f} %"),
            Fact(name="majority class alone", value=f"{100 * majority(matrix):.1f} % mIoU"),
            Fact(name="pictures", value=str(len(indices))),
        ),
        confusion=tuple(tuple(int(value) for value in row) for row in matrix),
        pictures=tuple(pictures),
    )


def majority(matrix: np.ndarray) -> float:
    """Return the mIoU of always predicting the most frequent class."""
    truth = matrix.sum(1)
    present = int((truth > 0).sum())
    return float(truth.max() / truth.sum() / present) if present else 0.0

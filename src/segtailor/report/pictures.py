"""Example pictures for a report: image, truth, prediction and error, small and inside the page itself."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from segtailor.core.task import IGNORE, Colour
from segtailor.report.document import Picture

LARGEST = 360  # pixels of the longer side
MOST_COLOURS = 255  # of a palette image, besides the ignored label
IGNORED: Colour = (120, 120, 120)
WRONG: Colour = (213, 94, 0)  # vermilion: told from grey with any colour vision
Labels = NDArray[np.uint8]


def picture(
    name: str,
    kind: Literal["worst", "best"],
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
    found = image_quality(labels, predicted) if quality is None else quality
    small, truth, guess = _fitted(image, labels, predicted)
    return Picture(
        name=name,
        kind=kind,
        quality=found,
        image=_uri(Image.fromarray(small), "jpeg"),
        truth=_uri(coloured(truth, palette), "png"),
        prediction=_uri(coloured(guess, palette), "png"),
        error=_uri(error_map(small, truth, guess), "png"),
    )


def drawn(
    name: str, kind: Literal["worst", "best"], parts: Sequence[Image.Image], *, quality: float
) -> Picture:
    """Return one example from finished pictures: image, truth, prediction, error."""
    uris = []
    for part in parts:
        small = part.convert("RGB")
        small.thumbnail((LARGEST, LARGEST), Image.Resampling.LANCZOS)
        uris.append(_uri(small, "jpeg"))
    image, truth, prediction, error = uris
    return Picture(
        name=name, kind=kind, quality=quality, image=image, truth=truth, prediction=prediction, error=error
    )


def coloured(labels: Labels, palette: Sequence[Colour]) -> Image.Image:
    """Return labels in the colours of their classes; ignored pixels, and labels without a colour, are grey."""
    known = [tuple(colour) for colour in palette[:MOST_COLOURS]]
    flat = [value for colour in [*known, *[IGNORED] * (256 - len(known))] for value in colour]
    found = Image.fromarray(labels, mode="P")
    found.putpalette(flat)
    return found


def error_map(image: NDArray[np.uint8], labels: Labels, predicted: Labels) -> Image.Image:
    """Return the image in pale grey with wrong pixels marked; ignored pixels are left pale."""
    grey = np.asarray(Image.fromarray(image).convert("L")).astype(np.float32)
    levels = (186 + grey * 0.25).astype(np.uint8) // 8  # 32 levels: it is only a backdrop, and packs well
    wrong = (labels != predicted) & (labels != IGNORE)
    found = Image.fromarray(np.where(wrong, np.uint8(IGNORE), levels).astype(np.uint8), mode="P")
    steps = [min(8 * level, 255) for level in range(IGNORE) for _ in range(3)]
    found.putpalette([*steps, *WRONG])
    return found


def image_quality(labels: Labels, predicted: Labels) -> float:
    """Return the mIoU of one image over the classes that it shows or was given; 0 where nothing is labelled."""
    valid = labels != IGNORE
    truth, guess = labels[valid].astype(np.int64), predicted[valid].astype(np.int64)
    if not truth.size:
        return 0.0
    both = np.bincount(truth[truth == guess], minlength=256)
    either = np.bincount(truth, minlength=256) + np.bincount(guess, minlength=256) - both
    return float(np.mean(both[either > 0] / either[either > 0]))


def extremes(qualities: Sequence[float], count: int = 3) -> tuple[list[int], list[int]]:
    """Return the indices of the worst (worst first) and the best (best first), at most `count` each, none twice."""
    order = sorted(range(len(qualities)), key=lambda index: (qualities[index], index))
    each = min(count, len(order) // 2) if len(order) > 1 else len(order)
    return order[:each], [] if len(order) == 1 else order[::-1][:each]


def _fitted(image: NDArray[np.uint8], *labels: Labels) -> tuple[NDArray[np.uint8], ...]:
    height, width = image.shape[:2]
    factor = min(1.0, LARGEST / max(height, width))
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

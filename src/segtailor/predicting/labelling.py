"""One picture: predicted at a size that fits in memory, described in numbers, and painted.

Predictions always have the size of the picture.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from segtailor.core.errors import Unsupported
from segtailor.core.task import Task, needs_classes
from segtailor.data.files import software_tag
from segtailor.data.tiles import DEFAULT_TILE, LEAST_TILE_PIXELS
from segtailor.tasks import Look, kind_of
from segtailor.tasks.bands import resized_picture, shown_picture

STRIDE = (
    32  # pixels of a side per position in the deepest layers of most networks: shorter sides cost the same
)
MUCH_LARGER = 2.0  # times the height and width of the images of the training
SIZE_MULTIPLE = 8  # pixels; of sizes that are proposed
NETWORK_PIXELS = 2**24  # 4096x4096: beyond this the logits of 19 classes alone take more than 1.2 GB
PNG_COMPRESSION = 3  # level of zlib: files are a few percent larger, and written several times faster


class Predictor(Protocol):
    """A trained network ready to use, whatever runs it."""

    @property
    def task(self) -> Task:
        """What is predicted."""

    def predict(self, image: NDArray[np.uint8]) -> NDArray[Any]:
        """Predict an image (height, width, 3) at its own size."""


@runtime_checkable
class ScoringPredictor(Predictor, Protocol):
    """A predictor for segmentation that can say how sure it is."""

    @property
    def confident(self) -> bool:
        """Whether it gives probabilities; a file that gives bare labels does not."""

    def probabilities(self, image: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the probabilities (classes, height, width) of an image."""

    def predict_with_confidence(
        self, image: NDArray[np.uint8]
    ) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        """Return the labels of an image, and the probability of each."""


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """The prediction of a picture, e.g. labels (height, width), the size of the network's input, and the time taken.

    `confidence` (height, width) is the probability of each label, where it was asked for.
    """

    labels: NDArray[Any]
    confidence: NDArray[np.float32] | None = None
    network_size: tuple[int, int]
    resize_ms: float
    network_ms: float


def label(
    predictor: Predictor,
    image: NDArray[np.uint8],
    *,
    size: tuple[int, int] | None = None,
    pixels: int = NETWORK_PIXELS,
    confidence: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> Labelled:
    """Label a picture. The network gets it at `size`; else at its own size, reduced if it has more than `pixels`."""
    image_size = (image.shape[0], image.shape[1])
    input_size = network_size(image_size, size, max_pixels=pixels)
    start = clock()
    resized = image if input_size == image_size else _resized(image, input_size)
    ready = clock()
    sure = None
    if confidence:
        labels, sure = scoring(predictor).predict_with_confidence(resized)
    else:
        labels = predictor.predict(resized)
    done = clock()
    if input_size != image_size:
        labels = kind_of(predictor.task).resized(labels, input_size, image_size)
        if sure is not None:
            enlarged = Image.fromarray(sure).resize(image_size[::-1], Image.Resampling.BILINEAR)
            sure = np.asarray(enlarged)
    resize_ms = 1e3 * (ready - start + clock() - done)
    return Labelled(
        labels=labels,
        confidence=sure,
        network_size=input_size,
        resize_ms=resize_ms,
        network_ms=1e3 * (done - ready),
    )


def scoring(predictor: Predictor) -> ScoringPredictor:
    """Return the predictor as one that gives probabilities, or raise `Unsupported`."""
    needs_classes(predictor.task, "confidence")
    if not isinstance(predictor, ScoringPredictor) or not predictor.confident:
        raise Unsupported(
            "this model gives labels without confidence. Use the bundle, or export it with --confidence or with logits."
        )
    return predictor


def own_tile(predictor: Predictor) -> tuple[int, int]:
    """Return the size of tiles: that of a file that was made for one size (in another it would be scaled)."""
    size = getattr(predictor, "size", None)
    return size if size is not None and min(size) >= LEAST_TILE_PIXELS else DEFAULT_TILE


def scores_of(predictor: Predictor) -> Callable[[NDArray[np.uint8]], NDArray[np.float32]]:
    """Return the function that gives the scores (classes, height, width) by which tiles are blended.

    A model that gives bare labels scores its label with 1: two tiles then meet in the middle of their overlap.
    """
    if isinstance(predictor, ScoringPredictor) and predictor.confident:
        return predictor.probabilities
    classes = np.arange(predictor.task.outputs, dtype=np.uint8)[:, None, None]
    return lambda image: (predictor.predict(image)[None] == classes).astype(np.float32)


def confidence_picture(confidence: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return probabilities as grey values: 255 stands for 1."""
    return np.rint(np.clip(confidence, 0, 1) * 255).astype(np.uint8)


def unsure_picture(confidence: NDArray[np.float32], below: float) -> NDArray[np.uint8]:
    """Return a mask that is 255 where the label is less likely than `below`, and 0 elsewhere."""
    return np.where(confidence < below, 255, 0).astype(np.uint8)


def described(prediction: NDArray[Any], task: Task) -> dict[str, float]:
    """Describe a prediction in a few numbers: for a segmentation, the share of each class."""
    return kind_of(task).describe(prediction, task)


def paint(image: NDArray[np.uint8], prediction: NDArray[Any], task: Task, look: Look) -> Image.Image:
    """Draw a prediction on `image` (height, width, 3) in the given look; each kind of task has its own way."""
    return kind_of(task).paint(shown_picture(image), prediction, task, look)


def png(picture: Image.Image) -> bytes:
    """Return a picture as the content of a PNG file."""
    stream = BytesIO()
    picture.save(stream, "PNG", compress_level=PNG_COMPRESSION, **software_tag("PNG"))
    return stream.getvalue()


def network_size(
    image_size: tuple[int, int], requested: tuple[int, int] | None = None, *, max_pixels: int = NETWORK_PIXELS
) -> tuple[int, int]:
    """Return the (height, width) of the network's input for a picture: as requested, or reduced to `max_pixels`."""
    if requested is not None:
        if min(requested) < 1 or _cost_pixels(*requested) > NETWORK_PIXELS:
            raise Unsupported(
                f"size {requested[0]}x{requested[1]} is empty or needs too much memory; "
                f"give 1 to {NETWORK_PIXELS} pixels, for example 512x1024."
            )
        return requested
    height, width = image_size
    if _cost_pixels(height, width) <= max_pixels:
        return image_size
    shorter, longer = sorted(image_size)
    scale = math.sqrt(max_pixels / (height * width))
    if shorter * scale < STRIDE:
        scale = max_pixels / STRIDE / longer
    # A very short side keeps at least one pixel.
    return max(1, math.floor(height * scale)), max(1, math.floor(width * scale))


def scale_advice(trained: tuple[int, int], image: tuple[int, int], seen: tuple[int, int]) -> str | None:
    """Say that an image is much larger than those of the training, where the network `seen` it so, and what to do."""
    times = math.sqrt(seen[0] * seen[1] / (trained[0] * trained[1]))
    if times < MUCH_LARGER:
        return None
    scale = math.sqrt(trained[0] * trained[1] / (image[0] * image[1]))
    height, width = (
        max(SIZE_MULTIPLE, round(side * scale / SIZE_MULTIPLE) * SIZE_MULTIPLE) for side in image
    )
    return (
        f"it has {times:.1f} times the height and width of the images that the network was trained on "
        f"({trained[0]}x{trained[1]}). If it shows larger objects than those, rather than more of them, "
        f"--size {height}x{width} gives better labels"
    )


def _cost_pixels(height: int, width: int) -> int:
    """Return the number of pixels that determines the memory a network needs."""
    return max(height, STRIDE) * max(width, STRIDE)


def _resized(pixels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    return resized_picture(pixels, size)

"""One picture through a network, at a size that fits in memory; predictions always have the picture's own size."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from segtailor.core.errors import Unsupported
from segtailor.core.task import Task
from segtailor.tasks import kind_of

STRIDE = 32  # pixels of a side that become one in the depth of most networks: shorter sides are no cheaper
NETWORK_PIXELS = 2**24  # 4096x4096: beyond this the logits of 19 classes alone take more than 1.2 GB


class Predictor(Protocol):
    """A trained network ready to use, whatever runs it."""

    @property
    def task(self) -> Task:
        """What is predicted."""

    def predict(self, image: NDArray[np.uint8]) -> NDArray[Any]:
        """Predict an image (height, width, 3) at its own size."""


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """What was predicted of a picture, e.g. labels (height, width), the size the network saw, and how long it took."""

    labels: NDArray[Any]
    network_size: tuple[int, int]
    resize_ms: float
    network_ms: float


def label(
    predictor: Predictor,
    image: NDArray[np.uint8],
    *,
    size: tuple[int, int] | None = None,
    pixels: int = NETWORK_PIXELS,
    clock: Callable[[], float] = time.perf_counter,
) -> Labelled:
    """Label a picture; the network sees it at `size`, else at its own, reduced only above so many `pixels`."""
    own = (image.shape[0], image.shape[1])
    seen = network_size(own, size, most=pixels)
    start = clock()
    shown = image if seen == own else _resized(image, seen)
    ready = clock()
    labels = predictor.predict(shown)
    done = clock()
    if seen != own:
        labels = kind_of(predictor.task).resized(labels, seen, own)
    resize_ms = 1e3 * (ready - start + clock() - done)
    return Labelled(labels=labels, network_size=seen, resize_ms=resize_ms, network_ms=1e3 * (done - ready))


def network_size(
    own: tuple[int, int], asked: tuple[int, int] | None = None, *, most: int = NETWORK_PIXELS
) -> tuple[int, int]:
    """Return the (height, width) at which the network sees a picture."""
    if asked is not None:
        if min(asked) < 1 or _work(*asked) > NETWORK_PIXELS:
            raise Unsupported(
                f"size {asked[0]}x{asked[1]} is empty or needs too much memory; "
                f"give 1 to {NETWORK_PIXELS} pixels, for example 512x1024."
            )
        return asked
    height, width = own
    if _work(height, width) <= most:
        return own
    shorter, longer = sorted(own)
    scale = math.sqrt(most / (height * width))
    if shorter * scale < STRIDE:
        scale = most / STRIDE / longer
    # A side that would vanish keeps one pixel.
    return max(1, math.floor(height * scale)), max(1, math.floor(width * scale))


def _work(height: int, width: int) -> int:
    """Return the pixels that a picture costs a network."""
    return max(height, STRIDE) * max(width, STRIDE)


def described(found: NDArray[Any], task: Task) -> dict[str, float]:
    """Say in a few numbers what was predicted: of a segmentation the share of each class."""
    return kind_of(task).describe(found, task)


def _resized(pixels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    picture = Image.fromarray(pixels).resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return np.asarray(picture, np.uint8)

"""Labels as colours: flat, or laid over the image."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from segtailor.core.task import Colour

UNLABELLED: Colour = (0, 0, 0)  # how ignored pixels look
STRIP = 128  # rows mixed at a time: single precision of a whole large picture would take gigabytes


def colourise(labels: NDArray[np.uint8], palette: Sequence[Colour]) -> NDArray[np.uint8]:
    """Return the labels (height, width) as RGB (height, width, 3); ids beyond the palette are black."""
    painted: NDArray[np.uint8] = _table(palette)[labels]
    return painted


def overlay(
    image: NDArray[np.uint8], labels: NDArray[np.uint8], palette: Sequence[Colour], opacity: float = 0.55
) -> NDArray[np.uint8]:
    """Lay the colours of the labels over an image; ignored pixels show the bare image."""
    weight = np.zeros(256, np.float32)
    weight[: len(palette)] = opacity
    mixed = np.empty_like(image)
    for top in range(0, len(image), STRIP):
        rows = slice(top, top + STRIP)
        share = weight[labels[rows]][..., None]
        mixed[rows] = image[rows] * (1 - share) + colourise(labels[rows], palette) * share + 0.5
    return mixed


def _table(palette: Sequence[Colour]) -> NDArray[np.uint8]:
    table = np.empty((256, 3), np.uint8)
    table[:] = UNLABELLED
    table[: len(palette)] = np.array(palette, np.uint8).reshape(-1, 3)
    return table

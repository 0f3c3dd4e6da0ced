"""Giving one training image the light and colour cast of another (after Reinhard et al. 2001, in RGB).

Drives, sites and seasons differ first of all in brightness, contrast and tint. Mean and spread of each colour channel
say most of that, and moving them towards those of another image is an affine map: it joins the colour matrix that every
image has anyway and costs nothing on the device.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

STEP = 4  # every fourth pixel either way tells enough
LEAST_SPREAD = 1 / 255  # a plain image has no spread to scale


class Styles(NamedTuple):
    """Mean and standard deviation of each channel, (images, 3), on values 0..1."""

    mean: NDArray[np.float64]
    spread: NDArray[np.float64]

    def of(self, index: NDArray[np.integer]) -> Styles:
        """Return the rows of some images."""
        return Styles(self.mean[index], self.spread[index])


def styles(images: NDArray[np.uint8], sizes: NDArray[np.integer]) -> Styles:
    """Look at the valid part of images (n, height, width, 3), one at a time: they may be a memory map."""
    rows = []
    for image, (height, width) in zip(images, sizes, strict=True):
        pixels = np.asarray(image[:height:STEP, :width:STEP], dtype=np.float64).reshape(-1, 3) / 255
        rows.append((pixels.mean(axis=0), pixels.std(axis=0)))
    means, spreads = (np.stack(values) for values in zip(*rows, strict=True))
    return Styles(means, np.maximum(spreads, LEAST_SPREAD))


def restyled(
    colour: NDArray[np.float64], own: Styles, other: Styles, *, strength: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return colour matrices (images, 3, 4) that first move each image by its `strength` towards another's style."""
    share = strength[:, None]
    scale = 1 + share * (other.spread / own.spread - 1)
    shift = own.mean + share * (other.mean - own.mean) - scale * own.mean
    linear, offset = colour[:, :, :3], colour[:, :, 3:]
    return np.concatenate([linear * scale[:, None], linear @ shift[:, :, None] + offset], axis=2)

"""Pictures with other bands than red, green and blue: how raw values become 8 bits, and how such pictures are resized.

Inside, every picture is (height, width, bands) in uint8. Raw values, of any type, are mapped to it band by band by
ranges that were measured on training images and belong to the network (`Preprocessing.ranges`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

ROWS_AT_A_TIME = 256


def scaled_bands(values: NDArray[Any], ranges: Sequence[tuple[float, float]]) -> NDArray[np.uint8]:
    """Return raw values (height, width, bands) as uint8: each range becomes 0 to 255, what is beyond is cut.

    Values in uint8 are taken as scaled already. Missing values (not a number) become 0.
    """
    if values.dtype == np.uint8:
        return values
    low, high = (np.array(side, np.float32) for side in zip(*ranges, strict=True))
    pixels = np.empty(values.shape, np.uint8)
    for top in range(
        0, len(values), ROWS_AT_A_TIME
    ):  # large pictures would need several copies in single precision
        rows = slice(top, top + ROWS_AT_A_TIME)
        scaled = (values[rows].astype(np.float32) - low) * (255 / np.maximum(high - low, 1e-12))
        pixels[rows] = np.nan_to_num(np.rint(scaled), nan=0.0).clip(0, 255)
    return pixels


def resized_picture(pixels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Return a picture (height, width, bands) at a size (height, width), filtered before it shrinks."""
    if pixels.shape[2] == 3:
        return np.array(Image.fromarray(pixels).resize(size[::-1], Image.Resampling.BILINEAR), np.uint8)
    bands = [
        np.asarray(Image.fromarray(band).resize(size[::-1], Image.Resampling.BILINEAR))
        for band in np.moveaxis(pixels, 2, 0)
    ]
    return np.stack(bands, axis=2)


def shown_picture(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a picture (height, width, bands) as colours to look at: the first three bands, or grey."""
    bands = pixels.shape[2]
    return pixels[:, :, :3] if bands >= 3 else np.repeat(pixels[:, :, :1], 3, axis=2)

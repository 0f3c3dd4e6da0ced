"""A picture in a graph of one size, and what the graph says back on the picture: its shape is kept both ways."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from segtailor.core.task import Preprocessing
from segtailor.nets.inference import enlarge, enlarged_labels

Size = tuple[int, int]  # height, width


def fitted(size: Size, within: Size) -> Size:
    """Return the largest size of the same shape that fits."""
    scale = min(most / side for side, most in zip(size, within, strict=True))
    height, width = (min(most, max(1, round(side * scale))) for side, most in zip(size, within, strict=True))
    return height, width


def framed(pixels: NDArray[np.uint8], size: Size, preprocessing: Preprocessing) -> NDArray[np.uint8]:
    """Return a picture (height, width, 3) at a size: in its upper left corner, as large as it fits.

    Beside it is the mean colour, which normalising turns into about 0.
    """
    if pixels.shape[:2] == size:
        return pixels
    height, width = fitted((pixels.shape[0], pixels.shape[1]), size)
    canvas = np.empty((*size, 3), np.uint8)
    canvas[:] = np.clip(np.round(255 * np.asarray(preprocessing.mean)), 0, 255)
    resized = Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)
    canvas[:height, :width] = np.asarray(resized)
    return canvas


def labels_on(output: NDArray[Any], size: Size, picture: Size, *, align_corners: bool) -> NDArray[np.uint8]:
    """Return the labels of a picture from logits (1, classes, h, w) or labels (1, h, w) of its frame of a size.

    Logits are enlarged; labels go by the nearest one, because between two class numbers there is none.
    """
    height, width = fitted(picture, size)
    if output.ndim == 3:
        labels = output[0].astype(np.uint8)
        if (height, width) != size:
            labels = _nearest(labels, size)[:height, :width]
        return _nearest(labels, picture)
    logits = torch.from_numpy(output.astype(np.float32, copy=False))
    if (height, width) == size:
        return enlarged_labels(logits, picture, align_corners=align_corners)
    inner = enlarge(logits, size, align_corners=align_corners)[..., :height, :width]
    return enlarged_labels(inner, picture, align_corners=False)  # as pictures are resized


def _nearest(labels: NDArray[np.uint8], size: Size) -> NDArray[np.uint8]:
    if labels.shape == size:
        return labels
    return np.asarray(Image.fromarray(labels).resize(size[::-1], Image.Resampling.NEAREST), dtype=np.uint8)

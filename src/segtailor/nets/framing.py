"""A picture in a graph of one size, and what the graph says back on the picture: its shape is kept both ways."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from segtailor.core.task import Preprocessing, Task
from segtailor.nets.inference import decoded, enlarge
from segtailor.tasks import kind_of

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


def found_on(
    output: NDArray[Any], frame: Size, picture: Size, *, task: Task, finished: bool, align_corners: bool
) -> NDArray[Any]:
    """Return what a graph says about a picture: from its output, logits or `finished`, for the frame of a size.

    Logits are enlarged straight to the picture; how a finished output follows is the matter of its kind.
    """
    kind, inner = kind_of(task), fitted(picture, frame)
    if finished and inner == frame:
        return kind.finish(output[0], picture, task=task)
    if finished:
        return kind.resized(kind.corner(kind.finish(output[0], frame, task=task), inner), inner, picture)
    logits = torch.from_numpy(output.astype(np.float32, copy=False))
    if inner == frame:
        return decoded(logits, picture, task=task, align_corners=align_corners)
    part = enlarge(logits, frame, align_corners=align_corners)[..., : inner[0], : inner[1]]
    return decoded(part, picture, task=task, align_corners=False)  # as pictures are resized

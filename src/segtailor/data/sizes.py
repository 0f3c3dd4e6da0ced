"""Sizes as users write them, and samples brought to one."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from segtailor.core.errors import DataProblem
from segtailor.data.dataset import Pair

MOST = 2**14  # pixels of a side


def parse_size(text: str, *, what: str) -> tuple[int, int]:
    """Return height and width of e.g. `360x480`; anything else raises `DataProblem` naming `what`."""
    match = re.fullmatch(r"(\d{1,6})[x×](\d{1,6})", text.strip())
    if match is None:
        raise DataProblem(f"{what}={text} is not a size; write height x width, e.g. 128x256.")
    return int(match[1]), int(match[2])


def image_size(text: str, *, what: str) -> tuple[int, int]:
    """Return a size that images can be brought to."""
    size = parse_size(text, what=what)
    if not 1 <= min(size) <= max(size) <= MOST:
        raise DataProblem(f"{what}={text} is out of range; give sides of 1 to {MOST} pixels.")
    return size


def size_stamp(size: tuple[int, int] | None) -> str:
    """Return what tells samples of one size from those of another; nothing where each keeps its own."""
    return "" if size is None else f"|{size[0]}x{size[1]}"


def resized(pair: Pair, size: tuple[int, int] | None) -> Pair:
    """Bring an image smoothly, and its labels by the nearest pixel, to a size; none leaves them as they are."""
    image, labels = pair
    if size is None or image.shape[:2] == size:
        return pair
    height, width = size
    # Unlike torch's, this resize filters before it shrinks.
    smooth = Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR)
    rows, columns = (_nearest(old, new) for old, new in zip(image.shape[:2], size, strict=True))
    return Pair(np.array(smooth), np.ascontiguousarray(labels[rows[:, None], columns]))


def _nearest(old: int, new: int) -> NDArray[Any]:
    """Return the source pixel under the centre of each new one."""
    return np.minimum((2 * np.arange(new) + 1) * old // (2 * new), old - 1)

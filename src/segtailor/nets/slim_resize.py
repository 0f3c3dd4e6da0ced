"""Bilinear resizing as two small matrix products: fast and repeatable backwards, where kernels with atomics are not."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor


class Sides(NamedTuple):
    """The matrices that resize rows and columns."""

    rows: Tensor
    columns: Tensor


@lru_cache(maxsize=256)
def sides(before: tuple[int, int], after: tuple[int, int], device: torch.device, dtype: torch.dtype) -> Sides:
    """Return the matrices of a bilinear resize with aligned corners; kept, so that a recorded step only reads them."""
    with torch.inference_mode(False):  # kept for training, too
        made = [_matrix(size, wanted) for size, wanted in zip(before, after, strict=True)]
        return Sides(*(matrix.to(device, dtype) for matrix in made))


def resize(image: Tensor, by: Sides) -> Tensor:
    """Resize (n, channels, height, width) in either memory format."""
    images, channels, height, width = image.shape
    if not image.is_contiguous(memory_format=torch.channels_last) or channels == 1:
        return by.rows @ image @ by.columns.T
    flat = image.permute(0, 2, 3, 1).reshape(images, height, width * channels)
    rows = (by.rows @ flat).view(images * len(by.rows), width, channels)
    columns = by.columns @ rows
    return columns.view(images, len(by.rows), len(by.columns), channels).permute(0, 3, 1, 2)


def _matrix(size: int, wanted: int) -> Tensor:
    """Return the (wanted, size) matrix of linear interpolation with aligned corners."""
    step = (size - 1) / (wanted - 1) if wanted > 1 else 0.0
    place = torch.arange(wanted, dtype=torch.float64) * step
    low = place.floor().long().clamp(max=size - 1)
    high = (low + 1).clamp(max=size - 1)
    share = place - low
    matrix = torch.zeros(wanted, size, dtype=torch.float64)
    rows = torch.arange(wanted)
    matrix[rows, low] += 1 - share
    matrix[rows, high] += share
    return matrix

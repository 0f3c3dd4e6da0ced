"""Targets as arrays: how a kind of task stores them, checks them, crops, rotates and resizes them."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional


class Geometry(NamedTuple):
    """The source positions of the crops of a batch, on the device.

    `image` (batch, 1) is the index of each source; `rows`, `columns` (batch, side) are the nearest source row and
    column of each pixel, `rows_inside`, `columns_inside` are 1 where they lie inside the source. `lines` (batch, 4)
    holds the same as linear functions: source row = lines[0] + lines[1] * row, source column = lines[2] + lines[3] *
    column. A negative slope means a mirrored image; the absolute slope is the inverse of the scale. With `rescale`,
    targets that are lengths in the world (depths) are scaled too.
    """

    image: Tensor
    rows: Tensor
    columns: Tensor
    rows_inside: Tensor
    columns_inside: Tensor
    lines: Tensor
    rescale: bool = True

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the crops."""
        return self.rows.shape[1], self.columns.shape[1]


class Targets(Protocol):
    """How the targets of one task are stored in memory and in caches."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of their numbers."""

    @property
    def missing(self) -> float:
        """The value for missing targets."""

    def shape(self, size: tuple[int, int]) -> tuple[int, ...]:
        """Return the shape of the target of an image of `size` (height, width)."""

    def check(self, target: NDArray[Any], *, name: str) -> None:
        """Raise `DataProblem` where a target holds impossible values; type and shape are already checked."""

    def crop(self, targets: Tensor, geometry: Geometry) -> Tensor:
        """Return the targets of the crops, (batch, *shape(size)), from those of the sources (n, *shape(their size))."""

    def turn(self, targets: Tensor, angles: Tensor, size: tuple[int, int]) -> Tensor:
        """Return the targets of crops of `size` rotated clockwise about their centre by `angles` in radians."""

    def resized(self, target: NDArray[Any], size: tuple[int, int], to: tuple[int, int]) -> NDArray[Any]:
        """Return the target of an image of `size` after the image is resized to `to`."""


def crop_nearest(maps: Tensor, geometry: Geometry) -> Tensor:
    """Crop maps (n, height, width) by the nearest pixel; positions outside of the source hold arbitrary values."""
    batch, (height, width) = len(geometry.image), geometry.size
    lines = maps.view(-1, maps.shape[-1])
    rows = (geometry.image * maps.shape[1] + geometry.rows).flatten()
    chosen = lines.index_select(0, rows).view(batch, height, -1)
    return torch.gather(chosen, 2, geometry.columns.long()[:, None].expand(batch, height, width))


def rotate_maps(maps: Tensor, angles: Tensor, *, mode: Literal["bilinear", "nearest"]) -> Tensor:
    """Rotate maps (n, channels, height, width) clockwise by angles (n,) in radians; outside pixels become 0."""
    count, _, height, width = maps.shape
    down = torch.arange(height, device=maps.device) - (height - 1) / 2
    across = torch.arange(width, device=maps.device) - (width - 1) / 2
    cosine, sine = (part[:, None, None] for part in (angles.cos(), angles.sin()))
    x = cosine * across[None, None] + sine * down[None, :, None]
    y = cosine * down[None, :, None] - sine * across[None, None]
    grid = torch.stack([2 * x / width, 2 * y / height], dim=-1).expand(count, height, width, 2)
    return functional.grid_sample(maps, grid, mode=mode, padding_mode="zeros", align_corners=False)

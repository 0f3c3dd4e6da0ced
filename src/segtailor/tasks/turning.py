"""Turning pictures and maps about their centre, a batch at a time."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional


def turned(maps: Tensor, angles: Tensor, *, mode: Literal["bilinear", "nearest"]) -> Tensor:
    """Turn maps (n, channels, height, width) clockwise by angles (n,) in radians; what comes from outside is 0."""
    count, _, height, width = maps.shape
    down = torch.arange(height, device=maps.device) - (height - 1) / 2
    across = torch.arange(width, device=maps.device) - (width - 1) / 2
    cosine, sine = (part[:, None, None] for part in (angles.cos(), angles.sin()))
    x = cosine * across[None, None] + sine * down[None, :, None]
    y = cosine * down[None, :, None] - sine * across[None, None]
    grid = torch.stack([2 * x / width, 2 * y / height], dim=-1).expand(count, height, width, 2)
    return functional.grid_sample(maps, grid, mode=mode, padding_mode="zeros", align_corners=False)

"""The loss of pose networks: mean squared error of the maps, over joints that are labelled."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from segtailor.core.errors import DataProblem


def heatmap_loss(maps: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean over joints of each map's mean squared error.

    `maps` and `target` are (batch, joints, height, width), `weights` (batch, joints). Maps of another size, e.g. at
    stride 8, are first resized. A batch without any counted joint costs 0 and moves nothing.
    """
    if maps.ndim != 4 or target.shape[:2] != maps.shape[:2] or weights.shape != maps.shape[:2]:
        raise DataProblem(
            f"{tuple(maps.shape)} maps do not fit {tuple(target.shape)} targets with {tuple(weights.shape)} weights; "
            "the network needs one output per joint of the skeleton."
        )
    errors = (resized(maps, (target.shape[2], target.shape[3])) - target).square().mean((2, 3))
    return (errors * weights).sum() / weights.sum().clamp(min=1)


def resized(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Return maps at another resolution, pixel centres kept in place; the same ones where nothing changes."""
    if tuple(maps.shape[-2:]) == size:
        return maps
    return F.interpolate(maps, size=size, mode="bilinear", align_corners=False)

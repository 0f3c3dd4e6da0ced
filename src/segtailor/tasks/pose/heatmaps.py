"""Heat maps of joints (Xiao et al., Simple Baselines for Human Pose Estimation, ECCV 2018): encoding and decoding, the
loss, mirroring, and the flip test.

Pixel (0, 0) is at the centre of the top left pixel, in pictures and in maps, so a map pixel i covers the picture
around stride * (i + 0.5) - 0.5. That way mirroring a map is exactly mirroring the picture, whatever the stride.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from segtailor.core.errors import DataProblem
from segtailor.tasks.pose.persons import Joints
from segtailor.tasks.pose.skeletons import Skeleton

PEAK_SHIFT_MAP_PIXELS = 0.25  # a decoded peak moves this far towards the higher neighbour


@dataclass(frozen=True, kw_only=True)
class HeatMaps:
    """One map per joint for pictures of `size` (height, width); `sigma` is in map pixels."""

    size: tuple[int, int] = (256, 256)
    stride: int = 4
    sigma: float = 2.0

    def __post_init__(self) -> None:
        if (
            self.stride < 1
            or self.sigma <= 0
            or min(self.size) < 1
            or any(n % self.stride for n in self.size)
        ):
            raise DataProblem(
                f"heat maps of pictures {self.size[0]}x{self.size[1]} with stride {self.stride} and sigma "
                f"{self.sigma:g} cannot be made; give sides that the stride divides, and a sigma above 0."
            )

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of a map."""
        return self.size[0] // self.stride, self.size[1] // self.stride

    def encode(self, joints: Tensor) -> tuple[Tensor, Tensor]:
        """Turn joints (..., joints, 3) into maps (..., joints, height, width) and weights (..., joints).

        The peak is 1 at the joint's exact place. Unlabelled joints and those outside give an empty map, weight 0.
        """
        if joints.ndim < 2 or joints.shape[-1] != 3:
            raise DataProblem(
                f"joints have shape {tuple(joints.shape)}; give (..., joints, 3): x, y, visibility."
            )
        labelled = joints[..., 2] > 0
        places = joints[..., :2].float()
        if not bool(torch.isfinite(places[labelled]).all()):
            raise DataProblem("a labelled joint has a place that is not a number; set its visibility to 0.")
        places = torch.where(labelled[..., None], (places + 0.5) / self.stride - 0.5, -1.0)
        height, width = self.shape
        limit = places.new_tensor((width, height)) - 0.5
        counted = ((places >= -0.5) & (places < limit)).all(-1) & labelled
        across = self._bell(places[..., 0], width)
        down = self._bell(places[..., 1], height)
        weights = counted.float()
        return down[..., :, None] * across[..., None, :] * weights[..., None, None], weights

    def decode(self, maps: Tensor) -> Tensor:
        """Turn maps (..., height, width) of any resolution into x, y in picture pixels and the peak's value.

        The arg max moves a quarter of a map pixel towards the higher neighbour, in each direction on its own.
        """
        maps = torch.nan_to_num(maps.float(), nan=0.0)
        height, width = maps.shape[-2:]
        flat = maps.flatten(-2)
        peak, place = flat.max(-1)
        row, column = place // width, place % width
        x = column + _shift(flat, place, column, width, 1)
        y = row + _shift(flat, place, row, height, width)
        x = (x + 0.5) * (self.size[1] / width) - 0.5
        y = (y + 0.5) * (self.size[0] / height) - 0.5
        return torch.stack((x, y, peak.clamp(min=0)), -1)

    def _bell(self, centre: Tensor, length: int) -> Tensor:
        distance = torch.arange(length, device=centre.device, dtype=centre.dtype) - centre[..., None]
        return torch.exp(-(distance**2) / (2 * self.sigma**2))


def resize_maps(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize maps bilinearly; pixel centres stay in place. Maps that have the size are returned as they are."""
    if tuple(maps.shape[-2:]) == size:
        return maps
    return F.interpolate(maps, size=size, mode="bilinear", align_corners=False)


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
    errors = (resize_maps(maps, (target.shape[2], target.shape[3])) - target).square().mean((2, 3))
    return (errors * weights).sum() / weights.sum().clamp(min=1)


def mirror_maps(maps: Tensor, skeleton: Skeleton) -> Tensor:
    """Turn the maps (..., joints, height, width) of a mirrored picture into those of the picture itself."""
    order = torch.tensor(skeleton.mirrored, device=maps.device)
    return maps.flip(-1).index_select(-3, order)


def mirror_joints(joints: Joints, width: int, skeleton: Skeleton) -> Joints:
    """Return the joints (joints, 3) of the mirrored picture of that width."""
    turned = joints[list(skeleton.mirrored)].copy()
    turned[:, 0] = np.where(turned[:, 2] > 0, width - 1 - turned[:, 0], turned[:, 0])
    return turned


def flip_test(network: Callable[[Tensor], Tensor], images: Tensor, skeleton: Skeleton) -> Tensor:
    """Return the mean of the network's maps for images (batch, 3, height, width) and for their mirror images."""
    return (network(images) + mirror_maps(network(images.flip(-1)), skeleton)) / 2


def _shift(flat: Tensor, place: Tensor, index: Tensor, length: int, step: int) -> Tensor:
    """Return -1/4, 0 or 1/4 along one axis; nothing at the border, where one neighbour is missing."""
    inner = (index > 0) & (index < length - 1)
    last = flat.shape[-1] - 1
    after = flat.gather(-1, (place + step).clamp(max=last)[..., None])[..., 0]
    before = flat.gather(-1, (place - step).clamp(min=0)[..., None])[..., 0]
    return torch.where(inner, PEAK_SHIFT_MAP_PIXELS * torch.sign(after - before), 0.0)

"""Left and right: mirroring joints and maps, and the flip test that averages both views of a picture."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from segtailor.tasks.pose.persons import Joints
from segtailor.tasks.pose.skeletons import Skeleton


def mirror_maps(maps: Tensor, skeleton: Skeleton) -> Tensor:
    """Turn the maps (..., joints, height, width) of a mirrored picture into those of the picture itself."""
    order = torch.tensor(skeleton.mirrored, device=maps.device)
    return maps.flip(-1).index_select(-3, order)


def mirror_joints(joints: Joints, width: int, skeleton: Skeleton) -> Joints:
    """Return the joints (joints, 3) as they stand in the mirrored picture of that width."""
    turned = joints[list(skeleton.mirrored)].copy()
    turned[:, 0] = np.where(turned[:, 2] > 0, width - 1 - turned[:, 0], turned[:, 0])
    return turned


def flip_test(network: Callable[[Tensor], Tensor], images: Tensor, skeleton: Skeleton) -> Tensor:
    """Return the mean of the network's maps for images (batch, 3, height, width) and for their mirror images."""
    return (network(images) + mirror_maps(network(images.flip(-1)), skeleton)) / 2

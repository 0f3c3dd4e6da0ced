"""Module of the factorised reduction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from segtailor.ops.modules.conv import conv2d

if TYPE_CHECKING:
    from segtailor.core.plan import OpCall
    from segtailor.ops.reduction import FactorisedReduction


class ShiftedHalves(nn.Module):
    """Two stride-2 1x1 convolutions, the second one pixel further down and right."""

    def __init__(self, op: FactorisedReduction, call: OpCall) -> None:
        super().__init__()
        half = call.channels // 2
        self.conv1 = conv2d(call.source.channels, half, 1, stride=2)
        self.conv2 = conv2d(call.source.channels, half, 1, stride=2)
        self.first = op.first
        joint = op.norm == "joint"
        self.norm = nn.BatchNorm2d(call.channels) if joint else None
        self.norm1 = None if joint else nn.BatchNorm2d(half)
        self.norm2 = None if joint else nn.BatchNorm2d(half)

    def forward(self, image: Tensor) -> Tensor:
        """Pad odd sizes at the far edge, reduce, join."""
        height, width = image.shape[2:]
        if height % 2 or width % 2:
            image = functional.pad(image, (0, width % 2, 0, height % 2))
        if self.first:
            image = functional.relu(image)
        one, two = self.conv1(image), self.conv2(image[:, :, 1:, 1:])
        if self.norm1 is not None and self.norm2 is not None:
            one, two = self.norm1(one), self.norm2(two)
        out = torch.cat([one, two], dim=1)
        if self.norm is not None:
            out = self.norm(out)
        return out if self.first else functional.relu(out)

"""Module of the zoomed convolution."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from segtailor.ops.modules.conv import conv2d
from segtailor.ops.modules.merge import resized

if TYPE_CHECKING:
    from segtailor.core.plan import OpCall
    from segtailor.ops.zoomed import ZoomedConv


class Zoomed(nn.Module):
    """Shrink, convolve, enlarge (at stride 1), then ReLU. The stack has no last ReLU of its own."""

    def __init__(self, op: ZoomedConv, call: OpCall) -> None:
        super().__init__()
        self.stack = nn.Sequential()
        width = call.source.channels
        for number in range(1, op.repeats + 1):
            self.stack.add_module(f"conv{number}", conv2d(width, call.channels, 3))
            self.stack.add_module(f"norm{number}", nn.BatchNorm2d(call.channels))
            if number < op.repeats:
                self.stack.add_module(f"act{number}", nn.ReLU())
            width = call.channels
        self.enlarge = call.stride == 1

    def forward(self, image: Tensor) -> Tensor:
        """Run the block."""
        size = image.shape[2:]
        half = torch.Size([max(1, side // 2) for side in size])
        out: Tensor = self.stack(resized(image, half, align_corners=True))
        if self.enlarge:
            out = resized(out, size, align_corners=True)
        return functional.relu(out)

"""Pooling modules."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from torch import Tensor, nn

from segtailor.ops.modules.conv import activation, conv2d

if TYPE_CHECKING:
    from segtailor.core.plan import OpCall
    from segtailor.ops.pooling import MaxPool, PooledConv


def max_pool(op: MaxPool, call: OpCall) -> nn.Sequential:
    """Build the module of a `MaxPool` call."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["pool"] = nn.MaxPool2d(op.kernel, call.stride, padding=op.kernel // 2)
    if op.norm:
        layers["norm"] = nn.BatchNorm2d(call.source.channels)
    return nn.Sequential(layers)


class PooledConvUnit(nn.Module):
    """Global mean, 1x1 convolution, norm, activation, broadcast."""

    def __init__(self, op: PooledConv, call: OpCall) -> None:
        super().__init__()
        self.conv = conv2d(call.source.channels, call.channels, 1, bias=op.bias)
        self.norm = nn.BatchNorm2d(call.channels) if op.norm else None
        self.act = activation(op.activation)

    def forward(self, image: Tensor) -> Tensor:
        """Run on the mean; the result is a view that repeats one pixel."""
        pixel: Tensor = self.conv(image.mean((2, 3), keepdim=True))
        if self.norm is not None:
            pixel = self.norm(pixel)
        if self.act is not None:
            pixel = self.act(pixel)
        return pixel.expand(-1, -1, image.shape[2], image.shape[3])

"""Pooling modules. Sizes come from the input at run time."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn import functional

from segtailor.ops.modules.convolutions import activation, conv2d
from segtailor.ops.pooling import bin_window

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


class ClampedWindow(nn.Module):
    """Average pooling whose window never exceeds the map."""

    def __init__(self, window: int, steps: tuple[int, int]) -> None:
        super().__init__()
        self.window = window
        self.steps = steps

    def forward(self, image: Tensor) -> Tensor:
        """Pool."""
        height, width = image.shape[2:]
        window = (min(self.window, height), min(self.window, width))
        return functional.avg_pool2d(image, window, self.steps)


class Bins(nn.Module):
    """Average pooling into a fixed number of windows per side."""

    def __init__(self, bins: int) -> None:
        super().__init__()
        self.bins = bins

    def forward(self, image: Tensor) -> Tensor:
        """Pool."""
        if self.bins == 1:
            return image.mean((2, 3), keepdim=True)
        (high, down), (wide, right) = (bin_window(side, self.bins) for side in image.shape[2:])
        return functional.avg_pool2d(image, (high, wide), (down, right))


class BroadcastMean(nn.Module):
    """The mean of each channel, repeated to the size of the map."""

    def forward(self, image: Tensor) -> Tensor:
        """Return a view that repeats one pixel."""
        return image.mean((2, 3), keepdim=True).expand_as(image)


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

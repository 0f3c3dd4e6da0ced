"""Pooling: over small windows, over large ones, and over the whole map."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from segtailor.core.errors import InvalidArchitecture
from segtailor.core.plan import OpCall, Shape
from segtailor.ops.arithmetic import NORM_PARAMS, conv_macs, kernel_weights
from segtailor.ops.combining import Weightless
from segtailor.ops.convolutions import Activation

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class MaxPool:
    """Padded max pooling, then norm."""

    kernel: int = 3
    norm: bool = True

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        return call.source.halved(call.source.channels, call.stride)

    def macs(self, call: OpCall) -> int:  # noqa: ARG002 - one signature for all operators
        """Count multiply-accumulates: none."""
        return 0

    def params(self, call: OpCall) -> int:
        """Count learnable values."""
        return NORM_PARAMS * call.source.channels * self.norm

    def field(self, call: OpCall) -> float:  # noqa: ARG002 - one signature for all operators
        """Return the extent in input pixels."""
        return self.kernel

    def module(self, call: OpCall) -> nn.Module:
        """Build the module."""
        from segtailor.ops.modules.pooling import max_pool

        return max_pool(self, call)


@dataclass(frozen=True, kw_only=True)
class AveragePool(Weightless):
    """Mean of a square window of odd side, with the stride of the call; padding zeros are part of the mean."""

    kernel: int = 3

    def __post_init__(self) -> None:
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise InvalidArchitecture(f"average_pool: kernel is {self.kernel}; an odd number is needed.")

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        return call.source.halved(call.source.channels, call.stride)

    def field(self, call: OpCall) -> float:  # noqa: ARG002 - one signature for all operators
        """Return the extent in input pixels."""
        return self.kernel

    def module(self, call: OpCall) -> nn.Module:
        """Build the module."""
        from torch import nn

        return nn.AvgPool2d(self.kernel, call.stride, padding=self.kernel // 2)


@dataclass(frozen=True, kw_only=True)
class WindowPool(Weightless):
    """Unpadded average pooling with a large square window and its own vertical and horizontal step.

    The window is clamped to maps that are smaller than it, so that any image size works; the steps stay. The
    defaults are LR-ASPP's (Howard et al. 2019, section 6.4), written for 1024x2048 images at stride 16.
    """

    window: int = 49
    steps: tuple[int, int] = (16, 20)

    def output(self, call: OpCall) -> Shape:
        """Return the output shape: sizes round down, pixels after the last whole window are not used."""
        _keeps_channels("window_pool", call)
        rows, columns = (
            (side - min(self.window, side)) // step + 1
            for side, step in zip(call.source[1:], self.steps, strict=True)
        )
        return Shape(call.source.channels, rows, columns)

    def field(self, call: OpCall) -> float:  # noqa: ARG002 - one signature for all operators
        """Return the extent in input pixels."""
        return self.window

    def module(self, call: OpCall) -> nn.Module:  # noqa: ARG002 - sizes are taken from the input at run time
        """Build the module."""
        from segtailor.ops.modules.pooling import ClampedWindow

        return ClampedWindow(self.window, self.steps)


@dataclass(frozen=True, kw_only=True)
class BinPool(Weightless):
    """Means over `bins` x `bins` equal windows that cover the map; fewer windows where it has fewer pixels.

    Where `bins` divides the size this is adaptive pooling. Elsewhere windows overlap, so that every runtime can
    compute it with plain average pooling.
    """

    bins: int = 1

    def __post_init__(self) -> None:
        if self.bins < 1:
            raise InvalidArchitecture(f"bin_pool: bins is {self.bins}; at least 1 is needed.")

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        return Shape(call.source.channels, *(min(self.bins, side) for side in call.source[1:]))

    def field(self, call: OpCall) -> float:
        """Return the extent in input pixels: the longer side of a window, or infinity for one bin."""
        if self.bins == 1:
            return math.inf
        return max(bin_window(side, self.bins)[0] for side in call.source[1:])

    def module(self, call: OpCall) -> nn.Module:  # noqa: ARG002 - sizes are taken from the input at run time
        """Build the module."""
        from segtailor.ops.modules.pooling import Bins

        return Bins(self.bins)


@dataclass(frozen=True, kw_only=True)
class GlobalMean(Weightless):
    """Mean of each channel, broadcast back to the map's size."""

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        _keeps_channels("global_mean", call)
        return call.source

    def field(self, call: OpCall) -> float:  # noqa: ARG002 - one signature for all operators
        """Return the extent: the whole map."""
        return math.inf

    def module(self, call: OpCall) -> nn.Module:  # noqa: ARG002 - one signature for all operators
        """Build the module."""
        from segtailor.ops.modules.pooling import BroadcastMean

        return BroadcastMean()


@dataclass(frozen=True, kw_only=True)
class PooledConv:
    """Mean over the whole map, 1x1 convolution, norm, activation, broadcast back to the map's size."""

    norm: bool = True
    bias: bool = False
    activation: Activation = "relu"

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        return call.source._replace(channels=call.channels)

    def macs(self, call: OpCall) -> int:
        """Count multiply-accumulates: those of a single pixel."""
        return conv_macs(call.source.channels, Shape(call.channels, 1, 1), kernel=1)

    def params(self, call: OpCall) -> int:
        """Count learnable values."""
        each = call.channels * (NORM_PARAMS * self.norm + self.bias)
        return kernel_weights(call.source.channels, call.channels, kernel=1) + each

    def field(self, call: OpCall) -> float:  # noqa: ARG002 - one signature for all operators
        """Return the extent: the whole map."""
        return math.inf

    def module(self, call: OpCall) -> nn.Module:
        """Build the module."""
        from segtailor.ops.modules.pooling import PooledConvUnit

        return PooledConvUnit(self, call)


def bin_window(side: int, bins: int) -> tuple[int, int]:
    """Return window and step in pixels that cover a side with `bins` windows (at most one for each pixel)."""
    count = min(bins, side)
    step = side // count
    return side - (count - 1) * step, step


def _keeps_channels(name: str, call: OpCall) -> None:
    if call.channels != call.source.channels:
        raise InvalidArchitecture(
            f"{name}: keeps the {call.source.channels} channels of its input, it cannot make {call.channels}."
        )

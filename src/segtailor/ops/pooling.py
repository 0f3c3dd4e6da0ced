"""Pooling operators."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from segtailor.core.plan import OPERATORS, OpCall, Shape
from segtailor.ops.arithmetic import NORM, conv_macs, kernel_weights
from segtailor.ops.conv import Activation

if TYPE_CHECKING:
    from torch import nn


@OPERATORS.register("max_pool")
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
        return NORM * call.source.channels * self.norm

    def field(self, call: OpCall) -> float:  # noqa: ARG002 - one signature for all operators
        """Return the extent in input pixels."""
        return self.kernel

    def module(self, call: OpCall) -> nn.Module:
        """Build the module."""
        from segtailor.ops.modules.pooling import max_pool

        return max_pool(self, call)


@OPERATORS.register("pooled_conv")
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
        """Count multiply-accumulates: one pixel's worth."""
        return conv_macs(call.source.channels, Shape(call.channels, 1, 1), kernel=1)

    def params(self, call: OpCall) -> int:
        """Count learnable values."""
        each = call.channels * (NORM * self.norm + self.bias)
        return kernel_weights(call.source.channels, call.channels, kernel=1) + each

    def field(self, call: OpCall) -> float:  # noqa: ARG002 - one signature for all operators
        """Return the extent: everything."""
        return math.inf

    def module(self, call: OpCall) -> nn.Module:
        """Build the module."""
        from segtailor.ops.modules.pooling import PooledConvUnit

        return PooledConvUnit(self, call)

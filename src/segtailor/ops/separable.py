"""Depthwise-separable convolution: depthwise, pointwise, norm, activation, some times over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from segtailor.core.plan import OPERATORS, OpCall, Shape
from segtailor.ops.arithmetic import NORM, conv_macs, extent, kernel_weights
from segtailor.ops.conv import Activation

if TYPE_CHECKING:
    from torch import nn


@OPERATORS.register("separable")
@dataclass(frozen=True, kw_only=True)
class Separable:
    """`repeats` times depthwise and pointwise convolution, norm, activation; nothing between the two convolutions.

    `first` puts the activation before the depthwise convolution (pre-activation units).
    """

    kernel: int = 3
    dilation: int = 1
    repeats: int = 1
    activation: Activation = "relu"
    first: bool = False

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        return call.source.halved(call.channels, call.stride)

    def macs(self, call: OpCall) -> int:
        """Count multiply-accumulates."""
        output = self.output(call)
        total = 0
        for inputs in self._inputs(call):
            middle = output._replace(channels=inputs)
            total += conv_macs(inputs, middle, kernel=self.kernel, groups=inputs)
            total += conv_macs(inputs, output, kernel=1)
        return total

    def params(self, call: OpCall) -> int:
        """Count learnable values."""
        return sum(
            self.kernel**2 * inputs + kernel_weights(inputs, call.channels, kernel=1) + NORM * call.channels
            for inputs in self._inputs(call)
        )

    def field(self, call: OpCall) -> float:
        """Return the extent in input pixels."""
        step = extent(self.kernel, self.dilation) - 1
        return 1 + step + (self.repeats - 1) * step * call.stride

    def module(self, call: OpCall) -> nn.Module:
        """Build the module."""
        from segtailor.ops.modules.conv import separable_stack

        return separable_stack(self, call)

    def _inputs(self, call: OpCall) -> list[int]:
        return [call.source.channels] + [call.channels] * (self.repeats - 1)

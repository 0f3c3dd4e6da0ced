"""Convolution with optional norm and activation: the brick that most operators are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from segtailor.core.errors import InvalidArchitecture
from segtailor.core.plan import OPERATORS, OpCall, Shape
from segtailor.ops.arithmetic import NORM, conv_macs, extent, kernel_weights

if TYPE_CHECKING:
    from torch import nn

Activation: TypeAlias = Literal["relu", "relu6", "hardswish", "hardsigmoid", "sigmoid", "none"]


@OPERATORS.register("conv")
@dataclass(frozen=True, kw_only=True)
class Conv:
    """`repeats` times convolution, norm, activation; the stride sits on the first convolution.

    `groups` 0 means depthwise. `first` puts the activation before its convolution (pre-activation units).
    `same` pads as TensorFlow does: at stride 2 the odd pixel goes to the far edge.
    """

    kernel: int = 3
    dilation: int = 1
    groups: int = 1
    repeats: int = 1
    norm: bool = True
    bias: bool = False
    activation: Activation = "relu"
    first: bool = False
    same: bool = False
    eps: float = 1e-5

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        for width in (call.source.channels, call.channels):
            if width % max(self.groups, 1):
                raise InvalidArchitecture(f"channels: {width} do not divide into {self.groups} groups.")
        return call.source.halved(call.channels, call.stride)

    def macs(self, call: OpCall) -> int:
        """Count multiply-accumulates."""
        output = self.output(call)
        return sum(
            conv_macs(inputs, output, kernel=self.kernel, groups=self.groups or inputs)
            for inputs in self._inputs(call)
        )

    def params(self, call: OpCall) -> int:
        """Count learnable values."""
        each = call.channels * (NORM * self.norm + self.bias)
        return sum(
            kernel_weights(inputs, call.channels, kernel=self.kernel, groups=self.groups or inputs) + each
            for inputs in self._inputs(call)
        )

    def field(self, call: OpCall) -> float:
        """Return the extent in input pixels."""
        step = extent(self.kernel, self.dilation) - 1
        return 1 + step + (self.repeats - 1) * step * call.stride

    def module(self, call: OpCall) -> nn.Module:
        """Build the module."""
        from segtailor.ops.modules.conv import conv_stack

        return conv_stack(self, call)

    def _inputs(self, call: OpCall) -> list[int]:
        return [call.source.channels] + [call.channels] * (self.repeats - 1)

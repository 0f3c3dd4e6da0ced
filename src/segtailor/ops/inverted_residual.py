"""Inverted residual block: expand, depthwise, project, and add the input where shapes agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from segtailor.core.errors import InvalidArchitecture
from segtailor.core.plan import OPERATORS, OpCall, Shape
from segtailor.ops.arithmetic import NORM, conv_macs, extent, kernel_weights
from segtailor.ops.conv import Activation

if TYPE_CHECKING:
    from torch import nn


@OPERATORS.register("inverted_residual")
@dataclass(frozen=True, kw_only=True)
class InvertedResidual:
    """1x1 expansion, depthwise, linear 1x1 projection; `groups` applies to both 1x1 convolutions.

    The input is added when stride is 1 and channels agree. `expand` False leaves the expansion out
    (MobileNet-v2's first block in most implementations). `same` pads as TensorFlow does.
    """

    kernel: int = 3
    dilation: int = 1
    expansion: int = 6
    groups: int = 1
    expand: bool = True
    activation: Activation = "relu"
    same: bool = False
    eps: float = 1e-5

    def __post_init__(self) -> None:
        if not self.expand and self.expansion != 1:
            raise InvalidArchitecture("inverted_residual: expand can only be left out where expansion is 1.")

    def hidden(self, call: OpCall) -> int:
        """Return the width of the depthwise convolution."""
        return self.expansion * call.source.channels

    def residual(self, call: OpCall) -> bool:
        """Tell whether the input is added to the output."""
        return call.stride == 1 and call.source.channels == call.channels

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        for width in (call.source.channels, call.channels):
            if width % self.groups:
                raise InvalidArchitecture(f"channels: {width} do not divide into {self.groups} groups.")
        return call.source.halved(call.channels, call.stride)

    def macs(self, call: OpCall) -> int:
        """Count multiply-accumulates."""
        output, hidden, inputs = self.output(call), self.hidden(call), call.source.channels
        before = call.source._replace(channels=hidden)
        after = output._replace(channels=hidden)
        expansion = conv_macs(inputs, before, kernel=1, groups=self.groups) if self.expand else 0
        return (
            expansion
            + conv_macs(hidden, after, kernel=self.kernel, groups=hidden)
            + conv_macs(hidden, output, kernel=1, groups=self.groups)
        )

    def params(self, call: OpCall) -> int:
        """Count learnable values."""
        hidden, inputs = self.hidden(call), call.source.channels
        expansion = kernel_weights(inputs, hidden, kernel=1, groups=self.groups) + NORM * hidden
        return (
            expansion * self.expand
            + (self.kernel**2 + NORM) * hidden
            + kernel_weights(hidden, call.channels, kernel=1, groups=self.groups)
            + NORM * call.channels
        )

    def field(self, call: OpCall) -> float:  # noqa: ARG002 - one signature for all operators
        """Return the extent in input pixels."""
        return extent(self.kernel, self.dilation)

    def module(self, call: OpCall) -> nn.Module:
        """Build the module."""
        from segtailor.ops.modules.inverted_residual import InvertedResidualBlock

        return InvertedResidualBlock(self, call)

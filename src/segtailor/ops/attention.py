"""Attention with weights over channels, and the likeness of two maps as attention over pixels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from segtailor.core.errors import InvalidArchitecture
from segtailor.core.plan import OPERATORS, OpCall, Shape
from segtailor.ops.arithmetic import NORM, conv_macs
from segtailor.ops.conv import Activation
from segtailor.ops.merge import Free, Identity

if TYPE_CHECKING:
    from torch import nn


@OPERATORS.register("squeeze_excite")
@dataclass(frozen=True, kw_only=True)
class SqueezeExcite(Identity):
    """Weigh each channel by what 1x1 convolutions make of the mean of all (Hu et al. 2018).

    `hidden` is the width between two convolutions with ReLU; 0 means a single one. `norm` normalises what the last
    one gives. `keep` adds the unweighted input.
    """

    hidden: int = 0
    bias: bool = True
    norm: bool = False
    gate: Activation = "sigmoid"
    keep: bool = False

    def __post_init__(self) -> None:
        if self.hidden < 0:
            raise InvalidArchitecture(f"squeeze_excite: hidden is {self.hidden}; 0 or more is needed.")

    def widths(self, call: OpCall) -> list[tuple[int, int]]:
        """Return inputs and outputs of each convolution."""
        channels = call.source.channels
        if not self.hidden:
            return [(channels, channels)]
        return [(channels, self.hidden), (self.hidden, channels)]

    def macs(self, call: OpCall) -> int:
        """Count multiply-accumulates: one pixel's worth."""
        return sum(conv_macs(inputs, Shape(outputs, 1, 1), kernel=1) for inputs, outputs in self.widths(call))

    def params(self, call: OpCall) -> int:
        """Count learnable values."""
        kernels = sum((inputs + self.bias) * outputs for inputs, outputs in self.widths(call))
        return kernels + NORM * call.source.channels * self.norm

    def field(self, call: OpCall) -> float:  # noqa: ARG002 - one signature for all operators
        """Return the extent: everything."""
        return math.inf

    def module(self, call: OpCall) -> nn.Module:
        """Build the module."""
        from segtailor.ops.modules.attention import ChannelGate

        return ChannelGate(self, call)


@OPERATORS.register("likeness")
@dataclass(frozen=True, kw_only=True)
class Likeness(Free):
    """Sigmoid of the inner product of two maps at each pixel, the second resized to the first: one channel."""

    align_corners: bool = False

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        widths = {shape.channels for shape in call.inputs}
        if len(call.inputs) != 2 or len(widths) != 1 or call.channels != 1:
            raise InvalidArchitecture(
                f"likeness: compares two maps of equal width into one channel; these have {sorted(widths)}, "
                f"and {call.channels} are asked for."
            )
        return call.source._replace(channels=1)

    def module(self, call: OpCall) -> nn.Module:  # noqa: ARG002 - sizes are taken from the inputs at run time
        """Build the module."""
        from segtailor.ops.modules.attention import PixelLikeness

        return PixelLikeness(align_corners=self.align_corners)

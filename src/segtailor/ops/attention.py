"""Attention: weights over channels, similarity of pixels, and maps that are multiplied or blended by attention."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from segtailor.core.errors import InvalidArchitecture
from segtailor.core.plan import OpCall, Shape
from segtailor.ops.arithmetic import NORM_PARAMS, conv_macs
from segtailor.ops.combining import Identity, Weightless
from segtailor.ops.convolutions import Activation

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class SqueezeExcite(Identity):
    """Multiply each channel by a weight that 1x1 convolutions compute from the global mean (Hu et al. 2018).

    `hidden` is the width between two convolutions with ReLU; 0 means a single convolution. `norm` adds a norm after the
    last one. `keep` adds the input to the result.
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
        """Return the input and output channels of each convolution."""
        channels = call.source.channels
        if not self.hidden:
            return [(channels, channels)]
        return [(channels, self.hidden), (self.hidden, channels)]

    def macs(self, call: OpCall) -> int:
        """Count multiply-accumulates: those of a single pixel."""
        return sum(conv_macs(inputs, Shape(outputs, 1, 1), kernel=1) for inputs, outputs in self.widths(call))

    def params(self, call: OpCall) -> int:
        """Count learnable values."""
        kernels = sum((inputs + self.bias) * outputs for inputs, outputs in self.widths(call))
        return kernels + NORM_PARAMS * call.source.channels * self.norm

    def field(self, call: OpCall) -> float:  # noqa: ARG002 - one signature for all operators
        """Return the extent: the whole map."""
        return math.inf

    def module(self, call: OpCall) -> nn.Module:
        """Build the module."""
        from segtailor.ops.modules.attention import ChannelGate

        return ChannelGate(self, call)


@dataclass(frozen=True, kw_only=True)
class Likeness(Weightless):
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


@dataclass(frozen=True, kw_only=True)
class Gate(Weightless):
    """`x * a`, the second input resized to the first."""

    align_corners: bool = True

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        return call.source

    def module(self, call: OpCall) -> nn.Module:  # noqa: ARG002 - sizes are taken from the inputs at run time
        """Build the module."""
        from segtailor.ops.modules.attention import Gated

        return Gated(align_corners=self.align_corners)


@dataclass(frozen=True, kw_only=True)
class Blend(Weightless):
    """`x * (1 - a) + y`, with `y` and the attention `a` resized to `x` (LPS-Net equation 1)."""

    align_corners: bool = True

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        return call.source

    def module(self, call: OpCall) -> nn.Module:  # noqa: ARG002 - sizes are taken from the inputs at run time
        """Build the module."""
        from segtailor.ops.modules.attention import Blended

        return Blended(align_corners=self.align_corners)


@dataclass(frozen=True, kw_only=True)
class UnreadAttention(Identity):
    """Return the input unchanged; own two `width` x `width` kernels that are never used.

    FasterSeg's training form has them: its published parameter count and its checkpoints include them.
    """

    width: int

    def params(self, call: OpCall) -> int:  # noqa: ARG002 - one signature for all operators
        """Count the values of the unused kernels."""
        return 2 * self.width * self.width

    def module(self, call: OpCall) -> nn.Module:  # noqa: ARG002 - one signature for all operators
        """Build the module."""
        from segtailor.ops.modules.attention import UnreadKernels

        return UnreadKernels(self.width)

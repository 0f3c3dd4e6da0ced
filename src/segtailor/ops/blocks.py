"""Well-known residual and light blocks (LPS-Net's Table 2; ResNet encoders). Norm after every convolution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from segtailor.core.errors import InvalidArchitecture
from segtailor.core.plan import OPERATORS, OpCall, Shape
from segtailor.ops.arithmetic import NORM, conv_macs, kernel_weights

if TYPE_CHECKING:
    from torch import nn


class ConvSpec(NamedTuple):
    """One convolution with norm inside a block; `stride` divides the block's input size for its output."""

    inputs: int
    outputs: int
    kernel: int
    stride: int
    groups: int = 1


class _Block:
    """Counts that follow from the list of convolutions."""

    def convs(self, call: OpCall) -> list[ConvSpec]:
        """List the convolutions, each followed by a norm."""
        raise NotImplementedError

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        self.convs(call)  # refuses widths that do not divide
        return call.source.halved(call.channels, call.stride)

    def macs(self, call: OpCall) -> int:
        """Count multiply-accumulates."""
        return sum(
            conv_macs(
                conv.inputs,
                call.source.halved(conv.outputs, conv.stride),
                kernel=conv.kernel,
                groups=conv.groups,
            )
            for conv in self.convs(call)
        )

    def params(self, call: OpCall) -> int:
        """Count learnable values."""
        return sum(
            kernel_weights(conv.inputs, conv.outputs, kernel=conv.kernel, groups=conv.groups)
            + NORM * conv.outputs
            for conv in self.convs(call)
        )

    def shortcut(self, call: OpCall) -> list[ConvSpec]:
        """Return the 1x1 shortcut where shapes change, else nothing."""
        if call.stride == 1 and call.source.channels == call.channels:
            return []
        return [ConvSpec(call.source.channels, call.channels, 1, call.stride)]


@OPERATORS.register("residual")
@dataclass(frozen=True, kw_only=True)
class Residual(_Block):
    """Two 3x3 convolutions and a shortcut (He et al. 2016)."""

    def convs(self, call: OpCall) -> list[ConvSpec]:
        """List the convolutions: body, then shortcut."""
        width, stride = call.channels, call.stride
        body = [ConvSpec(call.source.channels, width, 3, stride), ConvSpec(width, width, 3, stride)]
        return body + self.shortcut(call)

    def field(self, call: OpCall) -> float:
        """Return the extent in input pixels."""
        return 3 + 2 * call.stride

    def module(self, call: OpCall) -> nn.Module:
        """Build the module."""
        from segtailor.ops.modules.blocks import ResidualBlock

        return ResidualBlock(self.convs(call), bare=2)


@OPERATORS.register("bottleneck")
@dataclass(frozen=True, kw_only=True)
class Bottleneck(_Block):
    """1x1, 3x3 (with the stride), 1x1 convolution and a shortcut; the middle is a quarter as wide."""

    reduction: int = 4

    def convs(self, call: OpCall) -> list[ConvSpec]:
        """List the convolutions: body, then shortcut."""
        middle = max(1, call.channels // self.reduction)
        body = [
            ConvSpec(call.source.channels, middle, 1, 1),
            ConvSpec(middle, middle, 3, call.stride),
            ConvSpec(middle, call.channels, 1, call.stride),
        ]
        return body + self.shortcut(call)

    def field(self, call: OpCall) -> float:  # noqa: ARG002 - one signature for all operators
        """Return the extent in input pixels."""
        return 3

    def module(self, call: OpCall) -> nn.Module:
        """Build the module."""
        from segtailor.ops.modules.blocks import ResidualBlock

        return ResidualBlock(self.convs(call), bare=3)


@OPERATORS.register("ghost")
@dataclass(frozen=True, kw_only=True)
class Ghost(_Block):
    """Half of the channels by a 3x3 convolution, the rest from them by a depthwise one (Han et al. 2020)."""

    def convs(self, call: OpCall) -> list[ConvSpec]:
        """List the convolutions: primary, then cheap."""
        half = _half(call.channels)
        return [
            ConvSpec(call.source.channels, half, 3, call.stride),
            ConvSpec(half, half, 3, call.stride, groups=half),
        ]

    def field(self, call: OpCall) -> float:
        """Return the extent in input pixels."""
        return 3 + 2 * call.stride

    def module(self, call: OpCall) -> nn.Module:
        """Build the module."""
        from segtailor.ops.modules.blocks import GhostBlock

        return GhostBlock(*self.convs(call))


@OPERATORS.register("shuffle")
@dataclass(frozen=True, kw_only=True)
class Shuffle(_Block):
    """ShuffleNet-v2 unit (Ma et al. 2018): two halves, one passed on where shapes agree; then shuffled."""

    def splits(self, call: OpCall) -> bool:
        """Tell whether half of the input is passed on untouched."""
        return call.stride == 1 and call.source.channels == call.channels

    def convs(self, call: OpCall) -> list[ConvSpec]:
        """List the convolutions: main branch of three, then (unless split) side branch of two."""
        half, stride = _half(call.channels), call.stride
        inputs = half if self.splits(call) else call.source.channels
        main = [
            ConvSpec(inputs, half, 1, 1),
            ConvSpec(half, half, 3, stride, groups=half),
            ConvSpec(half, half, 1, stride),
        ]
        side = [ConvSpec(inputs, inputs, 3, stride, groups=inputs), ConvSpec(inputs, half, 1, stride)]
        return main if self.splits(call) else main + side

    def field(self, call: OpCall) -> float:  # noqa: ARG002 - one signature for all operators
        """Return the extent in input pixels."""
        return 3

    def module(self, call: OpCall) -> nn.Module:
        """Build the module."""
        from segtailor.ops.modules.blocks import ShuffleBlock

        return ShuffleBlock(self.convs(call))


def _half(channels: int) -> int:
    if channels % 2:
        raise InvalidArchitecture(
            f"width: {channels} channels cannot be halved; ghost and shuffle blocks need even widths."
        )
    return channels // 2

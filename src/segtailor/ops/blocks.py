"""Blocks of several convolutions: residual and light blocks of well-known networks, and LPS-Net's `RepConv`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from segtailor.core.errors import InvalidArchitecture
from segtailor.core.plan import OpCall, Shape
from segtailor.ops.arithmetic import NORM_PARAMS, conv_macs, extent, kernel_weights
from segtailor.ops.convolutions import Activation

if TYPE_CHECKING:
    from torch import nn


class ConvSpec(NamedTuple):
    """One convolution with norm inside a block; `stride` is that of its output relative to the block's input."""

    inputs: int
    outputs: int
    kernel: int
    stride: int
    groups: int = 1


class _Block:
    """Base of blocks whose counts follow from their list of convolutions."""

    def convs(self, call: OpCall) -> list[ConvSpec]:
        """List the convolutions, each followed by a norm."""
        raise NotImplementedError

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        self.convs(call)  # raises for widths that do not divide
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
            + NORM_PARAMS * conv.outputs
            for conv in self.convs(call)
        )

    def shortcut(self, call: OpCall) -> list[ConvSpec]:
        """Return the 1x1 shortcut where shapes change, else nothing."""
        if call.stride == 1 and call.source.channels == call.channels:
            return []
        return [ConvSpec(call.source.channels, call.channels, 1, call.stride)]


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

        return ResidualBlock(self.convs(call), body_length=2)


@dataclass(frozen=True, kw_only=True)
class Bottleneck(_Block):
    """1x1, 3x3 (with the stride), 1x1 convolution and a shortcut; the middle has 1/`reduction` of the channels."""

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

        return ResidualBlock(self.convs(call), body_length=3)


@dataclass(frozen=True, kw_only=True)
class Ghost(_Block):
    """Half of the channels by a 3x3 convolution, the others from these by a depthwise one (Han et al. 2020)."""

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


@dataclass(frozen=True, kw_only=True)
class Shuffle(_Block):
    """ShuffleNet-v2 unit (Ma et al. 2018): two branches of half the channels, concatenated and shuffled.

    Where input and output have the same shape, one branch is half of the input unchanged.
    """

    def splits(self, call: OpCall) -> bool:
        """Tell whether one branch is half of the input unchanged."""
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


@dataclass(frozen=True, kw_only=True)
class InvertedBottleneck:
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
        expansion = kernel_weights(inputs, hidden, kernel=1, groups=self.groups) + NORM_PARAMS * hidden
        return (
            expansion * self.expand
            + (self.kernel**2 + NORM_PARAMS) * hidden
            + kernel_weights(hidden, call.channels, kernel=1, groups=self.groups)
            + NORM_PARAMS * call.channels
        )

    def field(self, call: OpCall) -> float:  # noqa: ARG002 - one signature for all operators
        """Return the extent in input pixels."""
        return extent(self.kernel, self.dilation)

    def module(self, call: OpCall) -> nn.Module:
        """Build the module."""
        from segtailor.ops.modules.blocks import InvertedResidualBlock

        return InvertedResidualBlock(self, call)


@dataclass(frozen=True, kw_only=True)
class RepConv:
    """LPS-Net's block: 3x3 convolution, norm, ReLU in training; folds exactly into a convolution with bias, and ReLU.

    `branches` adds a 1x1 branch and, where shapes agree, an identity branch, each with its own norm
    (re-parameterised training, LPS-Net section 4.2); the inference form is the same.
    """

    kernel: int = 3
    branches: bool = False

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        return call.source.halved(call.channels, call.stride)

    def macs(self, call: OpCall) -> int:
        """Count multiply-accumulates of the inference form."""
        return conv_macs(call.source.channels, self.output(call), kernel=self.kernel)

    def params(self, call: OpCall) -> int:
        """Count learnable values of the inference form: one kernel and its bias."""
        return self._weights(call, self.kernel) + call.channels

    def train_params(self, call: OpCall) -> int:
        """Count learnable values of the training form: every branch with its norm."""
        plain = self._weights(call, self.kernel) + NORM_PARAMS * call.channels
        if not self.branches:
            return plain
        norms = NORM_PARAMS * call.channels * (2 if self.has_identity(call) else 1)
        return plain + self._weights(call, 1) + norms

    def field(self, call: OpCall) -> float:  # noqa: ARG002 - one signature for all operators
        """Return the extent in input pixels."""
        return extent(self.kernel)

    def module(self, call: OpCall) -> nn.Module:
        """Build the training form."""
        from segtailor.ops.modules.blocks import RepConvBlock

        return RepConvBlock(self, call)

    def has_identity(self, call: OpCall) -> bool:
        """Tell whether the training form has an identity branch at this call."""
        return self.branches and call.stride == 1 and call.source.channels == call.channels

    def _weights(self, call: OpCall, kernel: int) -> int:
        return kernel_weights(call.source.channels, call.channels, kernel=kernel)


def _half(channels: int) -> int:
    if channels % 2:
        raise InvalidArchitecture(
            f"width: {channels} channels cannot be halved; ghost and shuffle blocks need even widths."
        )
    return channels // 2

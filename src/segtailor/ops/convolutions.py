"""Convolutions with norm and activation in their usual forms, and norms and activations alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from segtailor.core.errors import InvalidArchitecture
from segtailor.core.plan import OpCall, Shape
from segtailor.ops.arithmetic import NORM_PARAMS, conv_macs, extent, kernel_weights
from segtailor.ops.combining import Identity

if TYPE_CHECKING:
    from torch import nn

Activation: TypeAlias = Literal["relu", "relu6", "hardswish", "hardsigmoid", "sigmoid", "none"]


@dataclass(frozen=True, kw_only=True)
class Conv:
    """`repeats` times convolution, norm, activation; the first convolution has the stride.

    `groups` 0 means depthwise. `first` puts the activation before its convolution (pre-activation units).
    `same` pads as TensorFlow does: an odd pixel of padding goes to the bottom and right edge.
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
        each = call.channels * (NORM_PARAMS * self.norm + self.bias)
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
        from segtailor.ops.modules.convolutions import conv_stack

        return conv_stack(self, call)

    def _inputs(self, call: OpCall) -> list[int]:
        return [call.source.channels] + [call.channels] * (self.repeats - 1)


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
            self.kernel**2 * inputs
            + kernel_weights(inputs, call.channels, kernel=1)
            + NORM_PARAMS * call.channels
            for inputs in self._inputs(call)
        )

    def field(self, call: OpCall) -> float:
        """Return the extent in input pixels."""
        step = extent(self.kernel, self.dilation) - 1
        return 1 + step + (self.repeats - 1) * step * call.stride

    def module(self, call: OpCall) -> nn.Module:
        """Build the module."""
        from segtailor.ops.modules.convolutions import separable_stack

        return separable_stack(self, call)

    def _inputs(self, call: OpCall) -> list[int]:
        return [call.source.channels] + [call.channels] * (self.repeats - 1)


@dataclass(frozen=True, kw_only=True)
class ZoomedConv:
    """Halve the map, `repeats` 3x3 convolutions with norm, enlarge again: a quarter of the multiply-accumulates.

    FasterSeg section 3.1, Figure 3. At stride 2 the map is not enlarged again; odd sizes then round down, where a
    strided convolution rounds up. The last ReLU follows the enlarging. Resizing is bilinear with aligned corners.
    """

    repeats: int = 1

    def zoomed(self, call: OpCall) -> Shape:
        """Return the shape that the convolutions write."""
        return Shape(call.channels, *(max(1, side // 2) for side in call.source[1:]))

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        return self.zoomed(call) if call.stride == 2 else call.source._replace(channels=call.channels)

    def macs(self, call: OpCall) -> int:
        """Count multiply-accumulates."""
        return sum(conv_macs(inputs, self.zoomed(call), kernel=3) for inputs in self._inputs(call))

    def params(self, call: OpCall) -> int:
        """Count learnable values."""
        each = NORM_PARAMS * call.channels
        return sum(kernel_weights(inputs, call.channels, kernel=3) + each for inputs in self._inputs(call))

    def field(self, call: OpCall) -> float:  # noqa: ARG002 - one signature for all operators
        """Return the extent in input pixels: a pixel of the halved map covers two."""
        return 2 * (1 + 2 * self.repeats)

    def module(self, call: OpCall) -> nn.Module:
        """Build the module."""
        from segtailor.ops.modules.convolutions import Zoomed

        return Zoomed(self, call)

    def _inputs(self, call: OpCall) -> list[int]:
        return [call.source.channels] + [call.channels] * (self.repeats - 1)


@dataclass(frozen=True, kw_only=True)
class FactorisedReduction:
    """Halve a map by two stride-2 1x1 convolutions, the second on the map shifted by one pixel, and concatenate.

    Each gives half of the channels. `first`: ReLU before the convolutions (DARTS) instead of after the norm
    (FasterSeg). `norm`: one norm over all channels, or one for `each` half before the concatenation (SqueezeNAS).
    Odd sizes are padded at the bottom and right edge.
    """

    first: bool = True
    norm: Literal["joint", "each"] = "joint"

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        if call.channels % 2:
            raise InvalidArchitecture(
                f"channels: a factorised reduction halves them, {call.channels} is odd."
            )
        return call.source.halved(call.channels, 2)

    def macs(self, call: OpCall) -> int:
        """Count multiply-accumulates."""
        return conv_macs(call.source.channels, self.output(call), kernel=1)

    def params(self, call: OpCall) -> int:
        """Count learnable values."""
        return kernel_weights(call.source.channels, call.channels, kernel=1) + NORM_PARAMS * call.channels

    def field(self, call: OpCall) -> float:  # noqa: ARG002 - one signature for all operators
        """Return the extent in input pixels."""
        return 2

    def module(self, call: OpCall) -> nn.Module:
        """Build the module."""
        from segtailor.ops.modules.convolutions import ShiftedHalves

        return ShiftedHalves(self, call)


@dataclass(frozen=True, kw_only=True)
class HiddenClassifier:
    """3x3 convolution, norm, ReLU, then a 1x1 convolution with bias to the logits (`channels` classes).

    The hidden layer is as wide as the input up to `limit` channels, half as wide above it.
    """

    limit: int = 256

    def hidden(self, call: OpCall) -> Shape:
        """Return the shape of the hidden layer."""
        width = call.source.channels
        return call.source._replace(channels=width if width <= self.limit else width // 2)

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        return call.source._replace(channels=call.channels)

    def macs(self, call: OpCall) -> int:
        """Count multiply-accumulates."""
        hidden = self.hidden(call)
        return conv_macs(call.source.channels, hidden, kernel=3) + conv_macs(
            hidden.channels, self.output(call), kernel=1
        )

    def params(self, call: OpCall) -> int:
        """Count learnable values."""
        inputs, hidden = call.source.channels, self.hidden(call).channels
        return (
            kernel_weights(inputs, hidden, kernel=3)
            + NORM_PARAMS * hidden
            + kernel_weights(hidden, call.channels, kernel=1)
            + call.channels
        )

    def field(self, call: OpCall) -> float:  # noqa: ARG002 - one signature for all operators
        """Return the extent in input pixels."""
        return 3

    def module(self, call: OpCall) -> nn.Module:
        """Build the module."""
        from segtailor.ops.modules.convolutions import hidden_classifier

        return hidden_classifier(self, call)


@dataclass(frozen=True, kw_only=True)
class Activate(Identity):
    """Apply an activation to every value."""

    activation: Activation = "relu"

    def module(self, call: OpCall) -> nn.Module:  # noqa: ARG002 - one signature for all operators
        """Build the module."""
        from segtailor.ops.modules.convolutions import standalone_activation

        return standalone_activation(self.activation)


@dataclass(frozen=True, kw_only=True)
class Norm(Identity):
    """Batch norm, then an activation."""

    activation: Activation = "relu"

    def params(self, call: OpCall) -> int:
        """Count learnable values."""
        return NORM_PARAMS * call.source.channels

    def module(self, call: OpCall) -> nn.Module:
        """Build the module."""
        from segtailor.ops.modules.convolutions import norm_stack

        return norm_stack(self, call)

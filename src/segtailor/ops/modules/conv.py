"""Stacks of convolution, norm and activation. Submodules are called conv1, norm1, conv2, ... in order."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn import functional

from segtailor.ops.arithmetic import extent

if TYPE_CHECKING:
    from segtailor.core.plan import OpCall
    from segtailor.ops.conv import Activation, Conv
    from segtailor.ops.separable import Separable

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "hardswish": nn.Hardswish,
    "hardsigmoid": nn.Hardsigmoid,
    "sigmoid": nn.Sigmoid,
}


class SameConv(nn.Conv2d):
    """Convolution with TensorFlow's "same" padding: the odd pixel of padding goes to the far edge."""

    def forward(self, image: Tensor) -> Tensor:
        """Pad, then convolve without padding."""
        pads: list[int] = []
        for axis in (1, 0):
            size, stride = image.shape[2 + axis], self.stride[axis]
            total = max(
                (-(-size // stride) - 1) * stride
                + extent(self.kernel_size[axis], self.dilation[axis])
                - size,
                0,
            )
            pads += [total // 2, total - total // 2]
        return functional.conv2d(
            functional.pad(image, pads), self.weight, self.bias, self.stride, 0, self.dilation, self.groups
        )


def activation(kind: Activation) -> nn.Module | None:
    """Build an activation, or nothing."""
    return None if kind == "none" else _ACTIVATIONS[kind]()


def conv2d(
    inputs: int,
    outputs: int,
    kernel: int,
    *,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    bias: bool = False,
) -> nn.Conv2d:
    """Build a convolution whose padding keeps the size at stride 1."""
    padding = dilation * (kernel - 1) // 2
    kind = StridedPoint if kernel == 1 and stride > 1 else nn.Conv2d
    return kind(inputs, outputs, kernel, stride, padding, dilation, groups, bias)


class StridedPoint(nn.Conv2d):
    """A 1x1 convolution that, in training, leaves out pixels before it instead of within it: the same values.

    The backward pass of oneDNN (torch 2.13, CPU) writes beyond its memory for strided 1x1 convolutions over
    channels_last maps whose channels are no multiple of 4, such as an image. Deployed graphs keep the stride.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name that torch gives it
        """Convolve every `stride`-th pixel."""
        if not self.training or input.is_cuda:
            return super().forward(input)
        down, right = self.stride
        return functional.conv2d(
            input[:, :, ::down, ::right], self.weight, self.bias, dilation=self.dilation, groups=self.groups
        )


def same_padded(conv: nn.Conv2d) -> SameConv:
    """Return a convolution of the same form that pads as TensorFlow does."""
    kernel, stride, dilation = conv.kernel_size[0], conv.stride[0], conv.dilation[0]
    bias = conv.bias is not None
    return SameConv(conv.in_channels, conv.out_channels, kernel, stride, 0, dilation, conv.groups, bias)


def conv_stack(op: Conv, call: OpCall) -> nn.Sequential:
    """Build the module of a `Conv` call."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    width, stride = call.source.channels, call.stride
    for number in range(1, op.repeats + 1):
        groups = op.groups or width
        conv = conv2d(
            width, call.channels, op.kernel, stride=stride, dilation=op.dilation, groups=groups, bias=op.bias
        )
        if op.same:
            conv = same_padded(conv)
        norm = nn.BatchNorm2d(call.channels, eps=op.eps) if op.norm else None
        _append(layers, number, [("conv", conv), ("norm", norm)], activation(op.activation), first=op.first)
        width, stride = call.channels, 1
    return nn.Sequential(layers)


def separable_stack(op: Separable, call: OpCall) -> nn.Sequential:
    """Build the module of a `Separable` call; its convolutions are depth1, point1, depth2, ..."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    width, stride = call.source.channels, call.stride
    for number in range(1, op.repeats + 1):
        parts: list[tuple[str, nn.Module | None]] = [
            ("depth", conv2d(width, width, op.kernel, stride=stride, dilation=op.dilation, groups=width)),
            ("point", conv2d(width, call.channels, 1)),
            ("norm", nn.BatchNorm2d(call.channels)),
        ]
        _append(layers, number, parts, activation(op.activation), first=op.first)
        width, stride = call.channels, 1
    return nn.Sequential(layers)


def _append(
    layers: OrderedDict[str, nn.Module],
    number: int,
    parts: list[tuple[str, nn.Module | None]],
    act: nn.Module | None,
    *,
    first: bool,
) -> None:
    ordered = [("act", act), *parts] if first else [*parts, ("act", act)]
    for name, layer in ordered:
        if layer is not None:
            layers[f"{name}{number}"] = layer

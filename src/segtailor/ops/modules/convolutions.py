"""Modules of convolutions, norms and activations. The layers of a stack are called conv1, norm1, act1, conv2, ..."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from segtailor.ops.arithmetic import extent
from segtailor.ops.modules.combining import resized

if TYPE_CHECKING:
    from segtailor.core.plan import OpCall
    from segtailor.ops.convolutions import (
        Activation,
        Conv,
        FactorisedReduction,
        HiddenClassifier,
        Norm,
        Separable,
        ZoomedConv,
    )

Sides: TypeAlias = tuple[int, ...]  # of the two axes
FULL_BYTES = 4  # of a value in full precision

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "hardswish": nn.Hardswish,
    "hardsigmoid": nn.Hardsigmoid,
    "sigmoid": nn.Sigmoid,
}


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


class Zoomed(nn.Module):
    """Halve the map, convolve, enlarge (at stride 1), then ReLU. The stack itself ends without ReLU."""

    def __init__(self, op: ZoomedConv, call: OpCall) -> None:
        super().__init__()
        self.stack = nn.Sequential()
        width = call.source.channels
        for number in range(1, op.repeats + 1):
            self.stack.add_module(f"conv{number}", conv2d(width, call.channels, 3))
            self.stack.add_module(f"norm{number}", nn.BatchNorm2d(call.channels))
            if number < op.repeats:
                self.stack.add_module(f"act{number}", nn.ReLU())
            width = call.channels
        self.enlarge = call.stride == 1

    def forward(self, image: Tensor) -> Tensor:
        """Run the block."""
        size = image.shape[2:]
        half = torch.Size([max(1, side // 2) for side in size])
        out: Tensor = self.stack(resized(image, half, align_corners=True))
        if self.enlarge:
            out = resized(out, size, align_corners=True)
        return functional.relu(out)


class ShiftedHalves(nn.Module):
    """Two stride-2 1x1 convolutions, the second shifted by one pixel down and right."""

    def __init__(self, op: FactorisedReduction, call: OpCall) -> None:
        super().__init__()
        half = call.channels // 2
        self.conv1 = conv2d(call.source.channels, half, 1, stride=2)
        self.conv2 = conv2d(call.source.channels, half, 1, stride=2)
        self.first = op.first
        joint = op.norm == "joint"
        self.norm = nn.BatchNorm2d(call.channels) if joint else None
        self.norm1 = None if joint else nn.BatchNorm2d(half)
        self.norm2 = None if joint else nn.BatchNorm2d(half)

    def forward(self, image: Tensor) -> Tensor:
        """Pad odd sizes at the bottom and right edge, convolve, concatenate."""
        height, width = image.shape[2:]
        if height % 2 or width % 2:
            image = functional.pad(image, (0, width % 2, 0, height % 2))
        if self.first:
            image = functional.relu(image)
        one, two = self.conv1(image), self.conv2(image[:, :, 1:, 1:])
        if self.norm1 is not None and self.norm2 is not None:
            one, two = self.norm1(one), self.norm2(two)
        out = torch.cat([one, two], dim=1)
        if self.norm is not None:
            out = self.norm(out)
        return out if self.first else functional.relu(out)


def hidden_classifier(op: HiddenClassifier, call: OpCall) -> nn.Sequential:
    """Build the module of a `HiddenClassifier` call."""
    hidden = op.hidden(call).channels
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["conv1"] = conv2d(call.source.channels, hidden, 3)
    layers["norm1"] = nn.BatchNorm2d(hidden)
    layers["act1"] = nn.ReLU()
    layers["conv2"] = conv2d(hidden, call.channels, 1, bias=True)
    return nn.Sequential(layers)


def standalone_activation(kind: Activation) -> nn.Module:
    """Build the module of an `Activate` call; "none" is the identity."""
    return activation(kind) or nn.Identity()


def norm_stack(op: Norm, call: OpCall) -> nn.Sequential:
    """Build the module of a `Norm` call."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["norm"] = nn.BatchNorm2d(call.source.channels)
    act = activation(op.activation)
    if act is not None:
        layers["act"] = act
    return nn.Sequential(layers)


def activation(kind: Activation) -> nn.Module | None:
    """Build an activation; None for "none"."""
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
    kind = StridedPoint if kernel == 1 and stride > 1 else Conv2d
    return kind(inputs, outputs, kernel, stride, padding, dilation, groups, bias)


class Conv2d(nn.Conv2d):
    """A convolution that is trained on a GPU by torch's own kernels where cuDNN's are not worth their plans.

    cuDNN plans its kernels anew for every shape. For the backward pass of a depthwise convolution in half precision it
    compiles them, 0.6 s each (cuDNN 9.19, H200), so that the first step of a network takes ten seconds. torch's own
    kernels begin at once and take twice as long, but with dilation less. So cuDNN has those without dilation, in long
    trainings (`training.device.tune_kernels`). Where it is switched off (`many_shapes`), 1x1 convolutions are matrix
    products. The values are the same up to rounding.
    """

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # noqa: A002 - torch's name
        if input.is_cuda and not torch.compiler.is_compiling():
            return convolved(input, weight, bias, self.stride, self.padding, self.dilation, self.groups)
        output: Tensor = super()._conv_forward(input, weight, bias)
        return output


def is_plain(module: nn.Module | None) -> bool:
    """Tell whether a module is a convolution and nothing else; other subclasses pad or skip pixels."""
    return type(module) in (nn.Conv2d, Conv2d)


@contextmanager
def without_cudnn() -> Iterator[None]:
    """Let torch's own kernels compute what follows."""
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = before


def convolved(
    maps: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sides,
    padding: Sides | str,
    dilation: Sides,
    groups: int,
) -> Tensor:
    """Convolve on a GPU, as `Conv2d` says."""
    if groups == 1 and not torch.backends.cudnn.enabled and weight.shape[2:] == (1, 1) and not any(padding):
        down, right = stride
        columns = maps[:, :, ::down, ::right].permute(0, 2, 3, 1)
        return functional.linear(columns, weight[:, :, 0, 0], bias).permute(0, 3, 1, 2)
    planned = torch.backends.cudnn.benchmark and set(dilation) == {1}
    if groups == maps.shape[1] == len(weight) and torch.is_grad_enabled() and not planned:
        if torch.is_autocast_enabled(maps.device.type):
            kind = torch.get_autocast_dtype(maps.device.type)
            maps, weight = maps.to(kind), weight.to(kind)
            bias = None if bias is None else bias.to(kind)
        if maps.element_size() < FULL_BYTES:
            convolved: Tensor = Depthwise.apply(maps, weight, bias, stride, padding, dilation)  # type: ignore[no-untyped-call]
            return convolved
    return functional.conv2d(maps, weight, bias, stride, padding, dilation, groups)


class Depthwise(torch.autograd.Function):
    """A depthwise convolution whose passes both run without cuDNN."""

    @staticmethod
    def forward(
        ctx: Any,
        maps: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: Sides,
        padding: Sides,
        dilation: Sides,
    ) -> Tensor:
        """Convolve."""
        ctx.save_for_backward(maps, weight)
        ctx.settings = (stride, padding, dilation)
        ctx.biased = bias is not None
        with without_cudnn():
            return functional.conv2d(maps, weight, bias, stride, padding, dilation, len(weight))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of maps, weight and bias, as far as they are wanted."""
        maps, weight = ctx.saved_tensors
        wanted = [*ctx.needs_input_grad[:2], ctx.biased and ctx.needs_input_grad[2]]
        with without_cudnn():
            grads = torch.ops.aten.convolution_backward(
                gradient, maps, weight, [len(weight)] if ctx.biased else None, *ctx.settings,
                False, [0, 0], len(weight), wanted,
            )  # fmt: skip
        return (*grads, None, None, None)


class StridedPoint(Conv2d):
    """A strided 1x1 convolution that, in training, drops the unused pixels first; the values are the same.

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
    """Return a new convolution of the same form that pads as TensorFlow does."""
    kernel, stride, dilation = conv.kernel_size[0], conv.stride[0], conv.dilation[0]
    bias = conv.bias is not None
    return SameConv(conv.in_channels, conv.out_channels, kernel, stride, 0, dilation, conv.groups, bias)


class SameConv(Conv2d):
    """Convolution with TensorFlow's "same" padding: an odd pixel of padding goes to the bottom and right edge."""

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
        return self._conv_forward(functional.pad(image, pads), self.weight, self.bias)


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

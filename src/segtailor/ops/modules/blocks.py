"""Modules of the blocks, and the exact folding of a `RepConv` into one convolution."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from segtailor.ops.modules.convolutions import activation, conv2d, same_padded

if TYPE_CHECKING:
    from segtailor.core.plan import OpCall
    from segtailor.ops.blocks import ConvSpec, InvertedBottleneck, RepConv


class ResidualBlock(nn.Module):
    """ReLU of body plus shortcut; the first `body_length` specs are the body, a further one the shortcut."""

    def __init__(self, specs: Sequence[ConvSpec], *, body_length: int) -> None:
        super().__init__()
        self.body = conv_norms(specs[:body_length], relu=[True] * (body_length - 1) + [False])
        shortcut = specs[body_length:]
        self.shortcut = conv_norms(shortcut, relu=[False]) if shortcut else None

    def forward(self, image: Tensor) -> Tensor:
        """Run the block."""
        passed = image if self.shortcut is None else self.shortcut(image)
        return functional.relu(self.body(image) + passed)


class GhostBlock(nn.Module):
    """Channels of a full convolution and of a cheap one on these, concatenated."""

    def __init__(self, primary: ConvSpec, cheap: ConvSpec) -> None:
        super().__init__()
        self.primary = conv_norms([primary], relu=[True])
        self.cheap = conv_norms([cheap._replace(stride=1)], relu=[True])

    def forward(self, image: Tensor) -> Tensor:
        """Run the block."""
        real = self.primary(image)
        return torch.cat([real, self.cheap(real)], dim=1)


class ShuffleBlock(nn.Module):
    """Two branches, concatenated and shuffled so that the next block mixes them."""

    def __init__(self, specs: Sequence[ConvSpec]) -> None:
        super().__init__()
        self.main = conv_norms(specs[:3], relu=[True, False, True])
        self.side = conv_norms(specs[3:], relu=[False, True]) if len(specs) > 3 else None

    def forward(self, image: Tensor) -> Tensor:
        """Run the block."""
        if self.side is None:
            passed, worked = image.chunk(2, dim=1)
        else:
            passed, worked = self.side(image), image
        interleaved = torch.stack([passed, self.main(worked)], dim=2)  # the channel shuffle of two groups
        return interleaved.flatten(1, 2)


class InvertedResidualBlock(nn.Module):
    """Expand, depthwise, project; the input is added where shapes agree."""

    def __init__(self, op: InvertedBottleneck, call: OpCall) -> None:
        super().__init__()
        inputs, hidden = call.source.channels, op.hidden(call)
        depth = conv2d(hidden, hidden, op.kernel, stride=call.stride, dilation=op.dilation, groups=hidden)
        if op.same:
            depth = same_padded(depth)
        layers: OrderedDict[str, nn.Module | None] = OrderedDict()
        if op.expand:
            layers["expand"] = conv2d(inputs, hidden, 1, groups=op.groups)
            layers["expand_norm"] = nn.BatchNorm2d(hidden, eps=op.eps)
            layers["expand_act"] = activation(op.activation)
        layers["depth"] = depth
        layers["depth_norm"] = nn.BatchNorm2d(hidden, eps=op.eps)
        layers["depth_act"] = activation(op.activation)
        layers["project"] = conv2d(hidden, call.channels, 1, groups=op.groups)
        layers["project_norm"] = nn.BatchNorm2d(call.channels, eps=op.eps)
        self.body = nn.Sequential(
            OrderedDict((name, part) for name, part in layers.items() if part is not None)
        )
        self.residual = op.residual(call)

    def forward(self, image: Tensor) -> Tensor:
        """Run the block."""
        out: Tensor = self.body(image)
        return image + out if self.residual else out


class RepConvBlock(nn.Module):
    """ReLU of the sum of BN(3x3) and, with branches, BN(1x1) and BN(identity)."""

    def __init__(self, op: RepConv, call: OpCall) -> None:
        super().__init__()
        inputs, outputs = call.source.channels, call.channels
        self.conv = conv2d(inputs, outputs, op.kernel, stride=call.stride)
        self.norm = nn.BatchNorm2d(outputs)
        self.point = conv2d(inputs, outputs, 1, stride=call.stride) if op.branches else None
        self.point_norm = nn.BatchNorm2d(outputs) if op.branches else None
        self.identity_norm = nn.BatchNorm2d(outputs) if op.has_identity(call) else None

    def forward(self, image: Tensor) -> Tensor:
        """Add the branches, then ReLU."""
        total = self.norm(self.conv(image))
        if self.point is not None and self.point_norm is not None:
            total = total + self.point_norm(self.point(image))
        if self.identity_norm is not None:
            total = total + self.identity_norm(image)
        return functional.relu(total)

    def fold(self) -> nn.Module:
        """Return the inference form: one convolution with bias, then ReLU."""
        kernel, bias = folded(self.conv.weight, self.norm)
        middle = self.conv.kernel_size[0] // 2
        if self.point is not None and self.point_norm is not None:
            weight, shift = folded(self.point.weight, self.point_norm)
            kernel[:, :, middle, middle] += weight[:, :, 0, 0]
            bias += shift
        if self.identity_norm is not None:
            eye = torch.eye(kernel.shape[0], dtype=kernel.dtype, device=kernel.device)
            weight, shift = folded(eye[:, :, None, None], self.identity_norm)
            kernel[:, :, middle, middle] += weight[:, :, 0, 0]
            bias += shift
        conv = conv2d(
            self.conv.in_channels, self.conv.out_channels, self.conv.kernel_size[0],
            stride=self.conv.stride[0], bias=True,
        )  # fmt: skip
        conv.to(device=kernel.device, dtype=self.conv.weight.dtype)
        with torch.no_grad():
            conv.weight.copy_(kernel)
            if conv.bias is not None:
                conv.bias.copy_(bias)
        return nn.Sequential(conv, nn.ReLU())


def conv_norms(specs: Sequence[ConvSpec], *, relu: Sequence[bool]) -> nn.Sequential:
    """Build convolutions with norm, some with ReLU; a spec's stride is relative to the block's input."""
    layers: list[nn.Module] = []
    reached = 1
    for spec, active in zip(specs, relu, strict=True):
        step = spec.stride // reached
        layers += [
            conv2d(spec.inputs, spec.outputs, spec.kernel, stride=step, groups=spec.groups),
            nn.BatchNorm2d(spec.outputs),
        ]
        if active:
            layers.append(nn.ReLU())
        reached = spec.stride
    return nn.Sequential(*layers)


def folded(weight: Tensor, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Return kernel and bias of a bias-free convolution with its batch norm folded in, in double precision."""
    if norm.running_mean is None or norm.running_var is None:
        raise ValueError("a batch norm without running statistics cannot be folded")
    scale = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
    kernel = weight.double() * scale[:, None, None, None]
    bias = norm.bias.double() - norm.running_mean.double() * scale
    return kernel.detach().clone(), bias.detach().clone()

"""Training form of LPS-Net's block, and its exact folding into one convolution."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from segtailor.ops.modules.conv import conv2d

if TYPE_CHECKING:
    from segtailor.core.plan import OpCall
    from segtailor.ops.rep_conv import RepConv


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


def folded(weight: Tensor, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Return kernel and bias of a bias-free convolution with its batch norm folded in, in double precision."""
    if norm.running_mean is None or norm.running_var is None:
        raise ValueError("a batch norm without running statistics cannot be folded")
    scale = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
    kernel = weight.double() * scale[:, None, None, None]
    bias = norm.bias.double() - norm.running_mean.double() * scale
    return kernel.detach().clone(), bias.detach().clone()

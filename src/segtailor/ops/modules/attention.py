"""Modules that compute attention, or apply it."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from torch import Tensor, nn

from segtailor.ops.modules.combining import resized
from segtailor.ops.modules.convolutions import activation, conv2d

if TYPE_CHECKING:
    from segtailor.core.plan import OpCall
    from segtailor.ops.attention import SqueezeExcite


class ChannelGate(nn.Module):
    """A map times channel weights that are computed from its mean."""

    def __init__(self, op: SqueezeExcite, call: OpCall) -> None:
        super().__init__()
        layers: OrderedDict[str, nn.Module | None] = OrderedDict()
        widths = op.widths(call)
        for number, (inputs, outputs) in enumerate(widths, start=1):
            layers[f"conv{number}"] = conv2d(inputs, outputs, 1, bias=op.bias)
            if number < len(widths):
                layers[f"act{number}"] = nn.ReLU()
        layers["norm"] = nn.BatchNorm2d(call.source.channels) if op.norm else None
        layers["gate"] = activation(op.gate)
        self.weigh = nn.Sequential(
            OrderedDict((name, part) for name, part in layers.items() if part is not None)
        )
        self.keep = op.keep

    def forward(self, image: Tensor) -> Tensor:
        """Weigh the channels."""
        weighed: Tensor = image * self.weigh(image.mean((2, 3), keepdim=True))
        return image + weighed if self.keep else weighed


class PixelLikeness(nn.Module):
    """Sigmoid of the inner product over channels."""

    def __init__(self, *, align_corners: bool) -> None:
        super().__init__()
        self.align_corners = align_corners

    def forward(self, image: Tensor, other: Tensor) -> Tensor:
        """Compare."""
        sized = resized(other, image.shape[2:], align_corners=self.align_corners)
        return (image * sized).sum(1, keepdim=True).sigmoid()


class Gated(nn.Module):
    """A map times an attention map."""

    def __init__(self, *, align_corners: bool) -> None:
        super().__init__()
        self.align_corners = align_corners

    def forward(self, image: Tensor, attention: Tensor) -> Tensor:
        """Multiply."""
        return image * resized(attention, image.shape[2:], align_corners=self.align_corners)


class Blended(nn.Module):
    """One map weighted by 1 - attention, plus another."""

    def __init__(self, *, align_corners: bool) -> None:
        super().__init__()
        self.align_corners = align_corners

    def forward(self, image: Tensor, other: Tensor, attention: Tensor) -> Tensor:
        """Blend."""
        size = image.shape[2:]
        keep = 1 - resized(attention, size, align_corners=self.align_corners)
        return image * keep + resized(other, size, align_corners=self.align_corners)


class UnreadKernels(nn.Module):
    """Identity with two unused 1x1 kernels; frozen, since they get no gradient."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = conv2d(width, width, 1).requires_grad_(False)
        self.conv2 = conv2d(width, width, 1).requires_grad_(False)

    def forward(self, image: Tensor) -> Tensor:
        """Return the input unchanged."""
        return image

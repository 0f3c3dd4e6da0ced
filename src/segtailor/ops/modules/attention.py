"""Modules of attention over channels and pixels."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from torch import Tensor, nn

from segtailor.ops.modules.conv import activation, conv2d
from segtailor.ops.modules.merge import resized

if TYPE_CHECKING:
    from segtailor.core.plan import OpCall
    from segtailor.ops.attention import SqueezeExcite


class ChannelGate(nn.Module):
    """A map times weights that are made from its mean."""

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

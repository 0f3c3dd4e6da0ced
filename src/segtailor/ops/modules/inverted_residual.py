"""Module of the inverted residual block."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from torch import Tensor, nn

from segtailor.ops.modules.conv import activation, conv2d, same_padded

if TYPE_CHECKING:
    from segtailor.core.plan import OpCall
    from segtailor.ops.inverted_residual import InvertedResidual


class InvertedResidualBlock(nn.Module):
    """Expand, depthwise, project; the input is added where shapes agree."""

    def __init__(self, op: InvertedResidual, call: OpCall) -> None:
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

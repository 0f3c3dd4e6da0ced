"""Modules of the heads."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from torch import Tensor, nn

from segtailor.ops.modules.conv import conv2d

if TYPE_CHECKING:
    from segtailor.core.plan import OpCall
    from segtailor.ops.classifier import HiddenClassifier


def hidden_classifier(op: HiddenClassifier, call: OpCall) -> nn.Sequential:
    """Build the module of a `HiddenClassifier` call."""
    hidden = op.hidden(call).channels
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["conv1"] = conv2d(call.source.channels, hidden, 3)
    layers["norm1"] = nn.BatchNorm2d(hidden)
    layers["act1"] = nn.ReLU()
    layers["conv2"] = conv2d(hidden, call.channels, 1, bias=True)
    return nn.Sequential(layers)


class UnreadKernels(nn.Module):
    """Identity with two 1x1 kernels; frozen, since no gradient ever reaches them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = conv2d(width, width, 1).requires_grad_(False)
        self.conv2 = conv2d(width, width, 1).requires_grad_(False)

    def forward(self, image: Tensor) -> Tensor:
        """Pass the input on."""
        return image

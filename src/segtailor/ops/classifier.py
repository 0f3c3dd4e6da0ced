"""Heads that turn features into class scores, and weights that a training form carries without using them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from segtailor.core.plan import OPERATORS, OpCall, Shape
from segtailor.ops.arithmetic import NORM, conv_macs, kernel_weights
from segtailor.ops.merge import Identity

if TYPE_CHECKING:
    from torch import nn


@OPERATORS.register("hidden_classifier")
@dataclass(frozen=True, kw_only=True)
class HiddenClassifier:
    """3x3 convolution, norm, ReLU, then a 1x1 convolution with bias to the scores (`channels` classes).

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
            + NORM * hidden
            + kernel_weights(hidden, call.channels, kernel=1)
            + call.channels
        )

    def field(self, call: OpCall) -> float:  # noqa: ARG002 - one signature for all operators
        """Return the extent in input pixels."""
        return 3

    def module(self, call: OpCall) -> nn.Module:
        """Build the module."""
        from segtailor.ops.modules.classifier import hidden_classifier

        return hidden_classifier(self, call)


@OPERATORS.register("unread_attention")
@dataclass(frozen=True, kw_only=True)
class UnreadAttention(Identity):
    """Pass the input on; carry two `width` x `width` kernels that nothing reads.

    FasterSeg's training form has them, its published parameter count includes them, and its checkpoints hold them.
    """

    width: int

    def params(self, call: OpCall) -> int:  # noqa: ARG002 - one signature for all operators
        """Count the values that are carried along."""
        return 2 * self.width * self.width

    def module(self, call: OpCall) -> nn.Module:  # noqa: ARG002 - one signature for all operators
        """Build the module."""
        from segtailor.ops.modules.classifier import UnreadKernels

        return UnreadKernels(self.width)

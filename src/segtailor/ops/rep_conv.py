"""The block of LPS-Net: a 3x3 convolution with bias and ReLU at inference, richer while training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from segtailor.core.plan import OPERATORS, OpCall, Shape
from segtailor.ops.arithmetic import NORM, conv_macs, extent, kernel_weights

if TYPE_CHECKING:
    from torch import nn


@OPERATORS.register("rep_conv")
@dataclass(frozen=True, kw_only=True)
class RepConv:
    """3x3 convolution, norm, ReLU in training; folds exactly into one 3x3 convolution with bias, and ReLU.

    `branches` adds a 1x1 branch and, where shapes agree, an identity branch, each with its own norm
    (re-parameterised training, LPS-Net section 4.2); the inference form stays the same.
    """

    kernel: int = 3
    branches: bool = False

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        return call.source.halved(call.channels, call.stride)

    def macs(self, call: OpCall) -> int:
        """Count multiply-accumulates of the inference form."""
        return conv_macs(call.source.channels, self.output(call), kernel=self.kernel)

    def params(self, call: OpCall) -> int:
        """Count learnable values of the inference form: one kernel and its bias."""
        return self._weights(call, self.kernel) + call.channels

    def train_params(self, call: OpCall) -> int:
        """Count learnable values of the training form: every branch with its norm."""
        plain = self._weights(call, self.kernel) + NORM * call.channels
        if not self.branches:
            return plain
        norms = NORM * call.channels * (2 if self.has_identity(call) else 1)
        return plain + self._weights(call, 1) + norms

    def field(self, call: OpCall) -> float:  # noqa: ARG002 - one signature for all operators
        """Return the extent in input pixels."""
        return extent(self.kernel)

    def module(self, call: OpCall) -> nn.Module:
        """Build the training form."""
        from segtailor.ops.modules.rep_conv import RepConvBlock

        return RepConvBlock(self, call)

    def has_identity(self, call: OpCall) -> bool:
        """Tell whether the training form has an identity branch at this call."""
        return self.branches and call.stride == 1 and call.source.channels == call.channels

    def _weights(self, call: OpCall, kernel: int) -> int:
        return kernel_weights(call.source.channels, call.channels, kernel=kernel)

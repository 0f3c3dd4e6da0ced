"""Factorised reduction: halve a map with two shifted 1x1 convolutions, so that no pixel is lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from segtailor.core.errors import InvalidArchitecture
from segtailor.core.plan import OPERATORS, OpCall, Shape
from segtailor.ops.arithmetic import NORM, conv_macs, kernel_weights

if TYPE_CHECKING:
    from torch import nn


@OPERATORS.register("factorised_reduction")
@dataclass(frozen=True, kw_only=True)
class FactorisedReduction:
    """Two stride-2 1x1 convolutions of half the channels, the second on the map shifted by one pixel; concatenate.

    `first`: ReLU before the convolutions (DARTS) instead of after the norm (FasterSeg). `norm`: one norm over all
    channels, or one for `each` half before the concatenation (SqueezeNAS). Odd sizes are padded at the far edge.
    """

    first: bool = True
    norm: Literal["joint", "each"] = "joint"

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        if call.channels % 2:
            raise InvalidArchitecture(
                f"channels: a factorised reduction halves them, {call.channels} is odd."
            )
        return call.source.halved(call.channels, 2)

    def macs(self, call: OpCall) -> int:
        """Count multiply-accumulates."""
        return conv_macs(call.source.channels, self.output(call), kernel=1)

    def params(self, call: OpCall) -> int:
        """Count learnable values."""
        return kernel_weights(call.source.channels, call.channels, kernel=1) + NORM * call.channels

    def field(self, call: OpCall) -> float:  # noqa: ARG002 - one signature for all operators
        """Return the extent in input pixels."""
        return 2

    def module(self, call: OpCall) -> nn.Module:
        """Build the module."""
        from segtailor.ops.modules.reduction import ShiftedHalves

        return ShiftedHalves(self, call)

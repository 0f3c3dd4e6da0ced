"""Attention arithmetic without weights: gate a map, or blend two maps by an attention map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from segtailor.core.plan import OPERATORS, OpCall, Shape
from segtailor.ops.merge import Free

if TYPE_CHECKING:
    from torch import nn


@OPERATORS.register("gate")
@dataclass(frozen=True, kw_only=True)
class Gate(Free):
    """`x * a`, the second input resized to the first."""

    align_corners: bool = True

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        return call.source

    def module(self, call: OpCall) -> nn.Module:  # noqa: ARG002 - sizes are taken from the inputs at run time
        """Build the module."""
        from segtailor.ops.modules.merge import Gated

        return Gated(align_corners=self.align_corners)


@OPERATORS.register("blend")
@dataclass(frozen=True, kw_only=True)
class Blend(Free):
    """`x * (1 - a) + y`, with `y` and the attention `a` resized to `x` (LPS-Net equation 1)."""

    align_corners: bool = True

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        return call.source

    def module(self, call: OpCall) -> nn.Module:  # noqa: ARG002 - sizes are taken from the inputs at run time
        """Build the module."""
        from segtailor.ops.modules.merge import Blended

        return Blended(align_corners=self.align_corners)

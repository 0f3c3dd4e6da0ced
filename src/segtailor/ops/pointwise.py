"""Norms and activations that stand alone: before a convolution, or after a sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from segtailor.core.plan import OPERATORS, OpCall
from segtailor.ops.arithmetic import NORM
from segtailor.ops.conv import Activation
from segtailor.ops.merge import Identity

if TYPE_CHECKING:
    from torch import nn


@OPERATORS.register("activate")
@dataclass(frozen=True, kw_only=True)
class Activate(Identity):
    """Apply an activation to every value."""

    activation: Activation = "relu"

    def module(self, call: OpCall) -> nn.Module:  # noqa: ARG002 - one signature for all operators
        """Build the module."""
        from segtailor.ops.modules.pointwise import alone

        return alone(self.activation)


@OPERATORS.register("norm")
@dataclass(frozen=True, kw_only=True)
class Norm(Identity):
    """Batch norm, then an activation."""

    activation: Activation = "relu"

    def params(self, call: OpCall) -> int:
        """Count learnable values."""
        return NORM * call.source.channels

    def module(self, call: OpCall) -> nn.Module:
        """Build the module."""
        from segtailor.ops.modules.pointwise import normed

        return normed(self, call)

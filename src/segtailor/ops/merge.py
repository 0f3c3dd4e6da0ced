"""Operators without weights that join or pass feature maps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from segtailor.core.errors import InvalidArchitecture
from segtailor.core.plan import OPERATORS, OpCall, Shape

if TYPE_CHECKING:
    from torch import nn


class Free:
    """No multiply-accumulates, no weights."""

    def macs(self, call: OpCall) -> int:  # noqa: ARG002 - one signature for all operators
        """Count multiply-accumulates: none."""
        return 0

    def params(self, call: OpCall) -> int:  # noqa: ARG002 - one signature for all operators
        """Count learnable values: none."""
        return 0


@OPERATORS.register("sum")
@dataclass(frozen=True, kw_only=True)
class Sum(Free):
    """Add all inputs after resizing them bilinearly to the size of input number `like`."""

    like: int = 0
    align_corners: bool = False

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        widths = {shape.channels for shape in call.inputs}
        if widths != {call.channels}:
            raise InvalidArchitecture(
                f"sum: inputs have {sorted(widths)} channels, all need {call.channels}."
            )
        return call.inputs[self.like]

    def module(self, call: OpCall) -> nn.Module:  # noqa: ARG002 - sizes are taken from the inputs at run time
        """Build the module."""
        from segtailor.ops.modules.merge import SumLike

        return SumLike(self.like, align_corners=self.align_corners)


@OPERATORS.register("concat")
@dataclass(frozen=True, kw_only=True)
class Concat(Free):
    """Concatenate channels in order after resizing all inputs bilinearly to the size of input number `like`."""

    like: int = 0
    align_corners: bool = False

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        width = sum(shape.channels for shape in call.inputs)
        if width != call.channels:
            raise InvalidArchitecture(f"concat: inputs have {width} channels in all, not {call.channels}.")
        return call.inputs[self.like]._replace(channels=width)

    def module(self, call: OpCall) -> nn.Module:  # noqa: ARG002 - sizes are taken from the inputs at run time
        """Build the module."""
        from segtailor.ops.modules.merge import ConcatLike

        return ConcatLike(self.like, align_corners=self.align_corners)


@OPERATORS.register("identity")
@dataclass(frozen=True, kw_only=True)
class Identity(Free):
    """Pass the input on."""

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        return call.source

    def module(self, call: OpCall) -> nn.Module:  # noqa: ARG002 - one signature for all operators
        """Build the module."""
        from torch import nn

        return nn.Identity()


@OPERATORS.register("zero")
@dataclass(frozen=True, kw_only=True)
class Zero(Free):
    """Zeros of the output size."""

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        return call.source.halved(call.channels, call.stride)

    def module(self, call: OpCall) -> nn.Module:
        """Build the module."""
        from segtailor.ops.modules.merge import Zeros

        return Zeros(call.channels, call.stride)

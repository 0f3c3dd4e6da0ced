"""Operators without weights that pass, resize, add or concatenate feature maps."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from segtailor.core.errors import InvalidArchitecture
from segtailor.core.plan import OpCall, Shape

if TYPE_CHECKING:
    from torch import nn


class Weightless:
    """Base of operators without multiply-accumulates and without weights."""

    def macs(self, call: OpCall) -> int:  # noqa: ARG002 - one signature for all operators
        """Count multiply-accumulates: none."""
        return 0

    def params(self, call: OpCall) -> int:  # noqa: ARG002 - one signature for all operators
        """Count learnable values: none."""
        return 0


@dataclass(frozen=True, kw_only=True)
class Identity(Weightless):
    """Return the input unchanged."""

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        return call.source

    def module(self, call: OpCall) -> nn.Module:  # noqa: ARG002 - one signature for all operators
        """Build the module."""
        from torch import nn

        return nn.Identity()


@dataclass(frozen=True, kw_only=True)
class Zero(Weightless):
    """Zeros of the output size."""

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        return call.source.halved(call.channels, call.stride)

    def module(self, call: OpCall) -> nn.Module:
        """Build the module."""
        from segtailor.ops.modules.combining import Zeros

        return Zeros(call.channels, call.stride)


@dataclass(frozen=True, kw_only=True)
class Sum(Weightless):
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
        from segtailor.ops.modules.combining import SumLike

        return SumLike(self.like, align_corners=self.align_corners)


@dataclass(frozen=True, kw_only=True)
class Concat(Weightless):
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
        from segtailor.ops.modules.combining import ConcatLike

        return ConcatLike(self.like, align_corners=self.align_corners)


@dataclass(frozen=True, kw_only=True)
class Resize(Weightless):
    """Resize the first input bilinearly to the size of the second; only the size of the second is used."""

    align_corners: bool = False

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        source, like = call.inputs
        return like._replace(channels=source.channels)

    def module(self, call: OpCall) -> nn.Module:  # noqa: ARG002 - sizes are taken from the inputs at run time
        """Build the module."""
        from segtailor.ops.modules.combining import ResizeLike

        return ResizeLike(align_corners=self.align_corners)


@dataclass(frozen=True, kw_only=True)
class ScaleImage(Weightless):
    """Resize bilinearly to `ratio` times the input size, rounded down but at least 1 (LPS-Net's path inputs)."""

    ratio: Fraction
    align_corners: bool = True

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        height, width = (max(1, int(side * self.ratio)) for side in call.source[1:])
        return Shape(call.source.channels, height, width)

    def module(self, call: OpCall) -> nn.Module:  # noqa: ARG002 - sizes are taken from the inputs at run time
        """Build the module."""
        from segtailor.ops.modules.combining import ScaleBy

        return ScaleBy(self.ratio, align_corners=self.align_corners)

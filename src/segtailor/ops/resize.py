"""Bilinear resizing: to the size of another map, or of the image by a ratio."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from segtailor.core.plan import OPERATORS, OpCall, Shape
from segtailor.ops.merge import Free

if TYPE_CHECKING:
    from torch import nn


@OPERATORS.register("resize")
@dataclass(frozen=True, kw_only=True)
class Resize(Free):
    """Resize the first input to the size of the second, which is read for its size alone."""

    align_corners: bool = False

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        source, like = call.inputs
        return like._replace(channels=source.channels)

    def module(self, call: OpCall) -> nn.Module:  # noqa: ARG002 - sizes are taken from the inputs at run time
        """Build the module."""
        from segtailor.ops.modules.merge import ResizeLike

        return ResizeLike(align_corners=self.align_corners)


@OPERATORS.register("scale_image")
@dataclass(frozen=True, kw_only=True)
class ScaleImage(Free):
    """Resize to `ratio` times the input size, rounded down but at least 1 (LPS-Net's path inputs)."""

    ratio: Fraction
    align_corners: bool = True

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        height, width = (max(1, int(side * self.ratio)) for side in call.source[1:])
        return Shape(call.source.channels, height, width)

    def module(self, call: OpCall) -> nn.Module:  # noqa: ARG002 - sizes are taken from the inputs at run time
        """Build the module."""
        from segtailor.ops.modules.merge import ScaleBy

        return ScaleBy(self.ratio, align_corners=self.align_corners)

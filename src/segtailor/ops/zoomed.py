"""Zoomed convolution: convolve at half resolution (FasterSeg section 3.1, Figure 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from segtailor.core.plan import OPERATORS, OpCall, Shape
from segtailor.ops.arithmetic import NORM, conv_macs, kernel_weights

if TYPE_CHECKING:
    from torch import nn


@OPERATORS.register("zoomed_conv")
@dataclass(frozen=True, kw_only=True)
class ZoomedConv:
    """Shrink to half, `repeats` 3x3 convolutions with norm, enlarge again: a quarter of the multiply-accumulates.

    At stride 2 the result stays small: the stride comes from the shrinking, so odd sizes round down where a strided
    convolution rounds up. The last ReLU follows the enlarging. Resizing is bilinear with aligned corners.
    """

    repeats: int = 1

    def zoomed(self, call: OpCall) -> Shape:
        """Return the shape that the convolutions write."""
        return Shape(call.channels, *(max(1, side // 2) for side in call.source[1:]))

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        return self.zoomed(call) if call.stride == 2 else call.source._replace(channels=call.channels)

    def macs(self, call: OpCall) -> int:
        """Count multiply-accumulates."""
        return sum(conv_macs(inputs, self.zoomed(call), kernel=3) for inputs in self._inputs(call))

    def params(self, call: OpCall) -> int:
        """Count learnable values."""
        each = NORM * call.channels
        return sum(kernel_weights(inputs, call.channels, kernel=3) + each for inputs in self._inputs(call))

    def field(self, call: OpCall) -> float:  # noqa: ARG002 - one signature for all operators
        """Return the extent in input pixels: each pixel of the shrunk map stands for two."""
        return 2 * (1 + 2 * self.repeats)

    def module(self, call: OpCall) -> nn.Module:
        """Build the module."""
        from segtailor.ops.modules.zoomed import Zoomed

        return Zoomed(self, call)

    def _inputs(self, call: OpCall) -> list[int]:
        return [call.source.channels] + [call.channels] * (self.repeats - 1)

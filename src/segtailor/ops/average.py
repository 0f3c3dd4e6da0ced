"""Average pooling: padded with a stride, or into a few bins over the whole map."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from segtailor.core.errors import InvalidArchitecture
from segtailor.core.plan import OPERATORS, OpCall, Shape
from segtailor.ops.merge import Free

if TYPE_CHECKING:
    from torch import nn


@OPERATORS.register("average_pool")
@dataclass(frozen=True, kw_only=True)
class AveragePool(Free):
    """Mean of a square window of odd side at the stride of the call; padding zeros count as values."""

    kernel: int = 3

    def __post_init__(self) -> None:
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise InvalidArchitecture(f"average_pool: kernel is {self.kernel}; an odd number is needed.")

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        return call.source.halved(call.source.channels, call.stride)

    def field(self, call: OpCall) -> float:  # noqa: ARG002 - one signature for all operators
        """Return the extent in input pixels."""
        return self.kernel

    def module(self, call: OpCall) -> nn.Module:
        """Build the module."""
        from torch import nn

        return nn.AvgPool2d(self.kernel, call.stride, padding=self.kernel // 2)


@OPERATORS.register("bin_pool")
@dataclass(frozen=True, kw_only=True)
class BinPool(Free):
    """Means over `bins` x `bins` equal windows that cover the map; fewer where it has fewer pixels.

    Windows touch where the size divides (adaptive pooling then) and overlap where it does not, so that every
    runtime can do it with plain average pooling.
    """

    bins: int = 1

    def __post_init__(self) -> None:
        if self.bins < 1:
            raise InvalidArchitecture(f"bin_pool: bins is {self.bins}; at least 1 is needed.")

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        return Shape(call.source.channels, *(min(self.bins, side) for side in call.source[1:]))

    def field(self, call: OpCall) -> float:
        """Return the extent in input pixels: the longer side of a window, or everything."""
        if self.bins == 1:
            return math.inf
        return max(bin_window(side, self.bins)[0] for side in call.source[1:])

    def module(self, call: OpCall) -> nn.Module:  # noqa: ARG002 - sizes are taken from the input at run time
        """Build the module."""
        from segtailor.ops.modules.average import Bins

        return Bins(self.bins)


def bin_window(side: int, bins: int) -> tuple[int, int]:
    """Return window and step that cut a side into `bins` (or as many as it has pixels)."""
    count = min(bins, side)
    step = side // count
    return side - (count - 1) * step, step

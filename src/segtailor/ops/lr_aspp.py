"""Context pooling of SqueezeNAS's decoders: LR-ASPP's fixed window, and the global mean of its ASPP."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from segtailor.core.errors import InvalidArchitecture
from segtailor.core.plan import OPERATORS, OpCall, Shape
from segtailor.ops.merge import Free

if TYPE_CHECKING:
    from torch import nn


@OPERATORS.register("window_pool")
@dataclass(frozen=True, kw_only=True)
class WindowPool(Free):
    """Unpadded average pooling with a large square window and its own vertical and horizontal step.

    The window is clamped to maps that are smaller than it, so that any image size works; the steps stay. The
    defaults are LR-ASPP's (Howard et al. 2019, section 6.4), written for 1024x2048 images at stride 16.
    """

    window: int = 49
    steps: tuple[int, int] = (16, 20)

    def output(self, call: OpCall) -> Shape:
        """Return the output shape: sizes round down, so pixels past the last whole window are not seen."""
        _keeps_channels("window_pool", call)
        rows, columns = (
            (side - min(self.window, side)) // step + 1
            for side, step in zip(call.source[1:], self.steps, strict=True)
        )
        return Shape(call.source.channels, rows, columns)

    def field(self, call: OpCall) -> float:  # noqa: ARG002 - one signature for all operators
        """Return the extent in input pixels."""
        return self.window

    def module(self, call: OpCall) -> nn.Module:  # noqa: ARG002 - sizes are taken from the input at run time
        """Build the module."""
        from segtailor.ops.modules.lr_aspp import ClampedWindow

        return ClampedWindow(self.window, self.steps)


@OPERATORS.register("global_mean")
@dataclass(frozen=True, kw_only=True)
class GlobalMean(Free):
    """Mean of each channel, broadcast back to the map's size."""

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        _keeps_channels("global_mean", call)
        return call.source

    def field(self, call: OpCall) -> float:  # noqa: ARG002 - one signature for all operators
        """Return the extent: everything."""
        return math.inf

    def module(self, call: OpCall) -> nn.Module:  # noqa: ARG002 - one signature for all operators
        """Build the module."""
        from segtailor.ops.modules.lr_aspp import BroadcastMean

        return BroadcastMean()


def _keeps_channels(name: str, call: OpCall) -> None:
    if call.channels != call.source.channels:
        raise InvalidArchitecture(
            f"{name}: keeps the {call.source.channels} channels of its input, it cannot make {call.channels}."
        )

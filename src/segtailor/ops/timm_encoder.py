"""A timm encoder as one operator, and its feature maps. timm is optional and imported only when one is used.

Shapes and counts come from running the model on torch's `meta` device, where no value is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from segtailor.core.plan import OpCall, Shape
from segtailor.ops.combining import Weightless

if TYPE_CHECKING:
    from torch import nn

    from segtailor.ops.modules.timm_encoder import TimmCounts

TIMM_STRIDES = (4, 8, 16, 32)


@dataclass(frozen=True, kw_only=True)
class TimmFeatures:
    """All four maps of timm's `features_only` form of `model`, read by `TimmTap`; `output` is the last map's shape."""

    model: str

    def taps(self, image: Shape) -> tuple[Shape, ...]:
        """Return the shapes of the four maps."""
        return self._counts(image).taps

    def output(self, call: OpCall) -> Shape:
        """Return the shape of the last map."""
        return self.taps(call.source)[-1]

    def macs(self, call: OpCall) -> int:
        """Count multiply-accumulates."""
        return self._counts(call.source).macs

    def params(self, call: OpCall) -> int:
        """Count learnable values."""
        return self._counts(call.source).params

    def module(self, call: OpCall) -> nn.Module:  # noqa: ARG002 - one signature for all operators
        """Build the module."""
        from segtailor.ops.modules.timm_encoder import TimmFeaturesModule

        return TimmFeaturesModule(self.model)

    def _counts(self, image: Shape) -> TimmCounts:
        from segtailor.ops.modules.timm_encoder import count_timm

        return count_timm(self.model, image)


@dataclass(frozen=True, kw_only=True)
class TimmTap(Weightless):
    """Map number `level` of the second input, a `TimmFeatures`; the first is the image, needed only for its size."""

    model: str
    level: int

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        return TimmFeatures(model=self.model).taps(call.source)[self.level]

    def module(self, call: OpCall) -> nn.Module:  # noqa: ARG002 - one signature for all operators
        """Build the module."""
        from segtailor.ops.modules.timm_encoder import PickLevel

        return PickLevel(self.level)

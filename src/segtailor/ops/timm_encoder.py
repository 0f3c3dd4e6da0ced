"""A timm encoder as one operator, and its taps. timm is optional: nothing is imported until one is used.

Shapes and counts come from running the model on torch's `meta` device, where no value is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from segtailor.core.plan import OPERATORS, OpCall, Shape
from segtailor.ops.merge import Free

if TYPE_CHECKING:
    from torch import nn

    from segtailor.ops.modules.timm_encoder import Facts

TIMM_STRIDES = (4, 8, 16, 32)


@OPERATORS.register("timm_features")
@dataclass(frozen=True, kw_only=True)
class TimmFeatures:
    """All four maps of timm's `features_only` form of `model`, read through `TimmTap`; the shape is the last one's."""

    model: str

    def taps(self, image: Shape) -> tuple[Shape, ...]:
        """Return the shapes of the four maps."""
        return self._facts(image).taps

    def output(self, call: OpCall) -> Shape:
        """Return the shape of the last map."""
        return self.taps(call.source)[-1]

    def macs(self, call: OpCall) -> int:
        """Count multiply-accumulates."""
        return self._facts(call.source).macs

    def params(self, call: OpCall) -> int:
        """Count learnable values."""
        return self._facts(call.source).params

    def module(self, call: OpCall) -> nn.Module:  # noqa: ARG002 - one signature for all operators
        """Build the module."""
        from segtailor.ops.modules.timm_encoder import TimmFeaturesModule

        return TimmFeaturesModule(self.model)

    def _facts(self, image: Shape) -> Facts:
        from segtailor.ops.modules.timm_encoder import facts

        return facts(self.model, image)


@OPERATORS.register("timm_tap")
@dataclass(frozen=True, kw_only=True)
class TimmTap(Free):
    """Map number `level` of the second input, a `TimmFeatures`; the first is the image, for its size alone."""

    model: str
    level: int

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""
        return TimmFeatures(model=self.model).taps(call.source)[self.level]

    def module(self, call: OpCall) -> nn.Module:  # noqa: ARG002 - one signature for all operators
        """Build the module."""
        from segtailor.ops.modules.timm_encoder import PickLevel

        return PickLevel(self.level)

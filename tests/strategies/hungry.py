"""A space whose supernet has memory for few images."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

from segtailor.core.plan import Shape
from segtailor.core.registry import SPACES
from segtailor.nets.relax import Live, Weights
from segtailor.nets.supernet import Outputs, SupernetSettings
from tests.strategies.gradient_toys import ToyOps, ToyOpsSupernet

BATCH = 8


class HungrySupernet(ToyOpsSupernet):
    """Has memory for `most` images only, and finds out after its norms have seen them, or only while recording."""

    most, when_recorded = BATCH, False
    failed: weakref.ref[Tensor] | None = None  # what was computed before memory ran out

    def forward(self, image: Tensor, weights: Weights, live: Live | None = None) -> Outputs:
        assert self.failed is None or self.failed() is None, "what failed still takes memory"
        outputs = super().forward(image, weights, live)
        now = not self.when_recorded or torch.cuda.is_current_stream_capturing()
        if now and len(image) > self.most and self.training and torch.is_grad_enabled():
            self.failed = weakref.ref(outputs["main"])
            raise torch.OutOfMemoryError("simulated")
        return outputs


@SPACES.register("toy_hungry_ops")
@dataclass(frozen=True, kw_only=True)
class HungryOps(ToyOps):
    most: int = BATCH
    when_recorded: bool = False

    def supernet(
        self, image: Shape, classes: int, *, settings: SupernetSettings | None = None
    ) -> ToyOpsSupernet:
        supernet = HungrySupernet(self, image, classes, settings or SupernetSettings())
        supernet.most, supernet.when_recorded = self.most, self.when_recorded
        return supernet

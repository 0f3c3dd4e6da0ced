"""The last stage of an exported graph that gives labels and, as further outputs, how likely and how unsure they are."""

from __future__ import annotations

import torch
from torch import Tensor

from segtailor.tasks.enlarging import enlarge
from segtailor.tasks.segmentation.kind import LabelHead


class ConfidentHead(LabelHead):
    """Labels (N, height, width) as `LabelHead` gives them, and their probabilities at a temperature.

    With `unsure`, a probability, also a mask: 255 where a label is less likely, otherwise 0.
    """

    def __init__(
        self, *, align_corners: bool, label_type: torch.dtype, temperature: float, unsure: float | None = None
    ) -> None:
        super().__init__(align_corners=align_corners, label_type=label_type)
        self.temperature, self.unsure = temperature, unsure

    def forward(self, logits: Tensor, size: tuple[int, int]) -> tuple[Tensor, ...]:  # type: ignore[override]
        """Return labels, confidence and mask; in exported graphs of one size band by band."""
        if not self.spans or not torch.compiler.is_exporting():
            return self._finished(enlarge(logits, size, align_corners=self.align_corners))
        wide = logits.to(self.across.dtype) @ self.across
        bands = [
            self._finished(getattr(self, f"down{index}") @ wide[:, :, start:stop])
            for index, (start, stop) in enumerate(self.spans)
        ]
        return tuple(torch.cat(rows, 1) for rows in zip(*bands, strict=True))

    def _finished(self, full: Tensor) -> tuple[Tensor, ...]:
        scaled = full / self.temperature
        best = scaled.amax(1)
        # 1 / sum(exp(x - best)) is the probability of the best one, and cannot overflow in half precision.
        confidence = 1 / (scaled - best[:, None]).exp().sum(1)
        labels = full.argmax(1).to(self.label_type)
        if self.unsure is None:
            return labels, confidence
        return labels, confidence, (confidence < self.unsure).to(torch.uint8) * 255

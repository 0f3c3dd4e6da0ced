"""Segmentation losses over all outputs of a network. Ignored labels never count; without any counted label a loss is 0.

Sums and normalisers are separate: with micro-batches or several processes the sum of a part is divided by the
normaliser of the whole batch, so that every division of a batch gives the same gradient. With hard-example mining or
labels shrunk to the logits the normaliser is known only after the forward pass: these average within each part.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from segtailor.core.errors import UserError
from segtailor.core.task import IGNORE
from segtailor.tasks.loss_settings import LossSettings, same_size

TINY = 1e-12  # keeps 0 / 0 at 0


class SegmentationLoss:
    """The loss of a training batch for `classes` classes, on one device."""

    def __init__(
        self, settings: LossSettings, *, classes: int, device: torch.device, align_corners: bool = False
    ) -> None:
        given = settings.class_weights
        if given is not None and len(given) != classes:
            raise UserError(
                f"loss.class_weights: {len(given)} weights for {classes} classes; give one per class."
            )
        self.settings = settings
        self.align_corners = align_corners
        self.class_weights = torch.tensor(given or [1.0] * classes, dtype=torch.float32, device=device)
        self.weighted = given is not None

    @property
    def global_normaliser(self) -> bool:
        """Whether the normaliser depends on the labels alone, so that parts of a batch can share it."""
        settings = self.settings
        return settings.ohem is None and settings.resize == "logits" and not settings.overlap

    def normaliser(self, labels: Tensor) -> Tensor:
        """Return the sum of the class weights of all pixels that count."""
        counted = labels != IGNORE
        if not self.weighted:
            return counted.sum(dtype=torch.float32)
        return (self.class_weights[labels.long().clamp(max=len(self.class_weights) - 1)] * counted).sum()

    def __call__(self, outputs: Mapping[str, Tensor], labels: Tensor, *, normaliser: Tensor) -> Tensor:
        """Return the weighted sum over outputs; `normaliser` is ignored where it cannot be shared."""
        terms = []
        for name, logits in outputs.items():
            sized, target = same_size(logits, labels, self.settings.resize, align_corners=self.align_corners)
            term = (
                self._mined(sized, target) if self.settings.ohem else self._plain(sized, target, normaliser)
            )
            if self.settings.overlap:
                term = term + self.settings.overlap * missed_overlap(sized, target)
            terms.append(self.settings.coefficient(name) * term)
        return torch.stack(terms).sum()

    def _plain(self, logits: Tensor, labels: Tensor, normaliser: Tensor) -> Tensor:
        total = self._cross_entropy(logits, labels, reduction="sum")
        own = normaliser if self.global_normaliser else self.normaliser(labels)
        return total / own.clamp(min=TINY)

    def _mined(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Average over the hard pixels: those at or below the threshold, or the hardest `ohem_keep` if more."""
        losses = self._cross_entropy(logits, labels, reduction="none")
        with torch.no_grad():
            counted = labels != IGNORE
            true = labels.long().masked_fill(~counted, 0)
            certain = logits.float().softmax(1).gather(1, true[:, None])[:, 0].masked_fill(~counted, 2.0)
            least = max(1, int(self.settings.ohem_keep * labels.numel()))
            hardest = certain.flatten().topk(least, largest=False, sorted=False).values
            limit = hardest.max().clamp(min=self.settings.ohem)  # kthvalue is a hundred times slower on a GPU
            kept = (certain <= limit) & counted
            normaliser = (self.class_weights[true] * kept).sum().clamp(min=TINY)
        return (losses * kept).sum() / normaliser

    def _cross_entropy(self, logits: Tensor, labels: Tensor, *, reduction: str) -> Tensor:
        return F.cross_entropy(
            logits.float(),
            labels.long(),
            weight=self.class_weights if self.weighted else None,
            ignore_index=IGNORE,
            label_smoothing=self.settings.label_smoothing,
            reduction=reduction,
        )


def missed_overlap(logits: Tensor, labels: Tensor) -> Tensor:
    """Return 1 - soft IoU (Rahman and Wang 2016), averaged over the classes that occur; 0 where none does."""
    counted = labels != IGNORE
    probabilities = logits.float().softmax(1) * counted[:, None]
    truth = torch.zeros_like(probabilities).scatter_(
        1, labels.long().masked_fill(~counted, 0)[:, None], counted[:, None].float()
    )
    both, predicted, true = (part.sum((0, 2, 3)) for part in (probabilities * truth, probabilities, truth))
    present = true > 0
    overlap = both / (predicted + true - both).clamp(min=TINY)
    missed: Tensor = ((1 - overlap) * present).sum() / present.sum().clamp(min=1)
    return missed


def count_labels(labels: NDArray[np.uint8], classes: int, *, block: int = 64) -> NDArray[np.int64]:
    """Count the pixels of each class in (n, height, width), a block at a time: it may be a memory map."""
    total = np.zeros(256, dtype=np.int64)
    for start in range(0, len(labels), block):
        total += np.bincount(np.asarray(labels[start : start + block]).reshape(-1), minlength=256)
    return total[:classes]


def balanced_weights(counts: NDArray[np.int64]) -> tuple[float, ...]:
    """Return `1 / ln(1.02 + share)` per class (ENet, Paszke et al. 2016), scaled to mean 1; absent classes get 0."""
    shares = counts / max(1, counts.sum())
    weights = np.where(counts > 0, 1 / np.log(1.02 + shares), 0.0)
    return tuple(
        float(weight) for weight in weights / max(TINY, weights[counts > 0].mean() if counts.any() else 1.0)
    )

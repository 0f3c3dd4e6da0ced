"""Segmentation losses over all outputs of a network. An ignored label never counts; nothing counted gives 0, not NaN.

Sums and normalisers are kept apart: with micro-batches or several processes the sum of a part is divided by the
normaliser of the whole batch, so that every division of a batch gives the same gradient. Hard-example mining and
shrunk labels know their normaliser only after the forward pass: they average within each part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from segtailor.core.errors import UserError
from segtailor.core.plan import MAIN
from segtailor.core.task import IGNORE
from segtailor.nets.inference import enlarge

TINY = 1e-12  # keeps 0 / 0 at 0


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """Cross-entropy and its variants.

    `ohem` keeps only pixels whose true class has at most this probability (0.7 is usual), but at least the share
    `ohem_keep` of all pixels. `balance` derives class weights from pixel frequencies, `class_weights` gives them.
    `auxiliary` holds coefficients of outputs by name; other auxiliary outputs get `auxiliary_default`. `resize`
    says whether logits are enlarged to the labels or labels shrunk (nearest) to the logits.
    """

    ohem: float | None = None
    ohem_keep: float = 1 / 16
    class_weights: tuple[float, ...] | None = None
    balance: bool = False
    label_smoothing: float = 0.0
    auxiliary: Mapping[str, float] = field(default_factory=dict)
    auxiliary_default: float = 0.4
    resize: Literal["logits", "labels"] = "logits"

    def __post_init__(self) -> None:
        if self.ohem is not None and not 0 < self.ohem <= 1:
            raise UserError(
                f"loss.ohem: {self.ohem} is no probability; give a threshold such as 0.7, or none."
            )
        if not 0 <= self.ohem_keep <= 1:
            raise UserError(
                f"loss.ohem_keep: {self.ohem_keep} is no share of pixels; give a value from 0 to 1."
            )
        if not 0 <= self.label_smoothing < 1:
            raise UserError(
                f"loss.label_smoothing: {self.label_smoothing} is out of range; give 0 up to below 1."
            )
        if self.balance and self.class_weights is not None:
            raise UserError("loss.balance and loss.class_weights exclude each other; give only one of them.")
        if self.class_weights is not None and min(self.class_weights, default=0) < 0:
            raise UserError("loss.class_weights: a weight is negative; give values of 0 or more.")

    def coefficient(self, output: str) -> float:
        """Return the coefficient of the named output."""
        return 1.0 if output == MAIN else self.auxiliary.get(output, self.auxiliary_default)


class Criterion:
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
        return self.settings.ohem is None and self.settings.resize == "logits"

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
            sized, target = self._matched(logits, labels)
            term = (
                self._mined(sized, target) if self.settings.ohem else self._plain(sized, target, normaliser)
            )
            terms.append(self.settings.coefficient(name) * term)
        return torch.stack(terms).sum()

    def _matched(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        size = labels.shape[-2:]
        if logits.shape[-2:] == size:
            return logits, labels
        if self.settings.resize == "labels":
            small = F.interpolate(labels[:, None], size=logits.shape[-2:], mode="nearest")
            return logits, small[:, 0]
        return enlarge(logits, (int(size[0]), int(size[1])), align_corners=self.align_corners), labels

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

"""Settings of the losses of all kinds of tasks, and the resize that these losses share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, TypeAlias

import torch.nn.functional as F
from torch import Tensor

from segtailor.core.errors import Unsupported, UserError
from segtailor.core.plan import MAIN
from segtailor.tasks.enlarging import enlarge

Resized: TypeAlias = Literal["logits", "labels"]


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """Settings of the training loss. The loss of each kind of task refuses settings that it does not use.

    `ohem` keeps only pixels whose true class has at most this probability (0.7 is usual), but at least the share
    `ohem_keep` of all pixels. `balance` derives class weights from pixel frequencies, `class_weights` gives them.
    `overlap` is the weight of `1 - soft IoU`, averaged over the classes in the batch: it weighs classes equally, as the
    mean IoU does, however few pixels they have. `auxiliary` holds coefficients of outputs by name; other
    auxiliary outputs get `auxiliary_default`. `resize` says whether logits are enlarged to the labels or labels
    shrunk (nearest) to the logits. `knee` is for depth: the share of the largest error of a batch beyond which an error
    counts squared.
    """

    ohem: float | None = None
    ohem_keep: float = 1 / 16
    class_weights: tuple[float, ...] | None = None
    balance: bool = False
    overlap: float = 0.0
    label_smoothing: float = 0.0
    auxiliary: Mapping[str, float] = field(default_factory=dict)
    auxiliary_default: float = 0.4
    resize: Resized = "logits"
    knee: float = 0.2

    def __post_init__(self) -> None:
        if self.ohem is not None and not 0 < self.ohem <= 1:
            raise UserError(
                f"loss.ohem: {self.ohem} is not a probability; give a threshold such as 0.7, or none."
            )
        if not 0 <= self.ohem_keep <= 1:
            raise UserError(
                f"loss.ohem_keep: {self.ohem_keep} is not a share of pixels; give a value from 0 to 1."
            )
        if not 0 <= self.label_smoothing < 1:
            raise UserError(
                f"loss.label_smoothing: {self.label_smoothing} is out of range; give 0 up to below 1."
            )
        if self.overlap < 0:
            raise UserError(f"loss.overlap: {self.overlap} is negative; give 0 or more.")
        if self.balance and self.class_weights is not None:
            raise UserError("loss.balance and loss.class_weights exclude each other; give only one of them.")
        if not 0 < self.knee <= 1:
            raise UserError(f"loss.knee: {self.knee} is not a share of the largest error; give e.g. 0.2.")
        if self.class_weights is not None and min(self.class_weights, default=0) < 0:
            raise UserError("loss.class_weights: a weight is negative; give values of 0 or more.")

    def coefficient(self, output: str) -> float:
        """Return the coefficient of the named output."""
        return 1.0 if output == MAIN else self.auxiliary.get(output, self.auxiliary_default)

    def only(self, kind: str, *used: str) -> None:
        """Raise `Unsupported` where a setting was changed that this kind of task does not use."""
        usual, shared = LossSettings(), ("auxiliary", "auxiliary_default", "resize")
        for item in fields(self):
            if item.name not in (*shared, *used) and getattr(self, item.name) != getattr(usual, item.name):
                raise Unsupported(f"loss.{item.name} has no effect for the task '{kind}'; leave it out.")


def same_size(
    logits: Tensor, targets: Tensor, resize: Resized, *, align_corners: bool
) -> tuple[Tensor, Tensor]:
    """Return outputs (n, channels, h, w) and targets (n, h, w) at one size, that of the targets or of the outputs."""
    size = (int(targets.shape[-2]), int(targets.shape[-1]))
    if logits.shape[-2:] == size:
        return logits, targets
    if resize == "labels":
        return logits, F.interpolate(targets[:, None], size=logits.shape[-2:], mode="nearest")[:, 0]
    return enlarge(logits, size, align_corners=align_corners), targets

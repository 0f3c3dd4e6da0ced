"""Distillation: the loss between the logits of a student and those of its teacher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from segtailor.core.errors import UserError
from segtailor.tasks.enlarging import enlarge


@dataclass(frozen=True, kw_only=True)
class DistillSettings:
    """The distillation loss, which is added to the loss of the task with `weight`.

    `kl` is KL(teacher, student) over classes, averaged over pixels; with `mean_over_classes` also over classes, the
    form of FasterSeg. `l2` is the mean squared error of the logits, the form of auxiliary cells (weight 0.3).
    """

    kind: Literal["kl", "l2"] = "kl"
    weight: float = 1.0
    temperature: float = 1.0
    mean_over_classes: bool = False

    def __post_init__(self) -> None:
        if self.weight < 0:
            raise UserError(f"distill.weight: {self.weight} is negative; give 0 or more.")
        if not self.temperature > 0:
            raise UserError(f"distill.temperature: {self.temperature} must be above 0; 1 changes nothing.")


def distillation(
    student: Tensor, teacher: Tensor, settings: DistillSettings, *, align_corners: bool
) -> Tensor:
    """Return the weighted loss between logits (n, classes, h, w); the student is resized to the teacher's size."""
    if student.shape[1] != teacher.shape[1]:
        raise UserError(
            f"the teacher predicts {teacher.shape[1]} classes, the student {student.shape[1]}; "
            "distil from a teacher of the same task."
        )
    size = (int(teacher.shape[2]), int(teacher.shape[3]))
    resized = enlarge(student.float(), size, align_corners=align_corners)
    target = teacher.detach().float()
    if settings.kind == "l2":
        return settings.weight * F.mse_loss(resized, target)
    temperature = settings.temperature
    divergence = F.kl_div(
        (resized / temperature).log_softmax(1),
        (target / temperature).log_softmax(1),
        reduction="sum",
        log_target=True,
    )
    pixels = target.numel() if settings.mean_over_classes else target.numel() / target.shape[1]
    # The factor keeps the size of the gradients independent of the temperature (Hinton et al., 2015).
    return settings.weight * temperature**2 * divergence / pixels

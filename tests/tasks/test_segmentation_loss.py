"""Losses: equal to torch's where they overlap, and right where ignored labels, mining and sizes come in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from segtailor.core.errors import UserError
from segtailor.tasks.loss_settings import LossSettings
from segtailor.tasks.segmentation.loss import SegmentationLoss, balanced_weights, count_labels, missed_overlap
from segtailor.training.distill import DistillSettings, distillation
from tests.training.toys import CPU

CLASSES = 4


def case(ignored: float = 0.2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits = 3 * torch.randn(2, CLASSES, 12, 16, generator=generator)
    labels = torch.randint(0, CLASSES, (2, 12, 16), generator=generator)
    labels[torch.rand(labels.shape, generator=generator) < ignored] = 255
    return logits.requires_grad_(), labels.byte()


def loss_of(outputs: dict[str, Tensor], labels: Tensor, *, align_corners: bool = False, **how: Any) -> Tensor:
    criterion = SegmentationLoss(
        LossSettings(**how), classes=CLASSES, device=CPU, align_corners=align_corners
    )
    return criterion(outputs, labels, normaliser=criterion.normaliser(labels))


@pytest.mark.parametrize("weights", [None, (1.0, 2.0, 0.5, 3.0)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_equals_that_of_torch(weights: tuple[float, ...] | None, smoothing: float) -> None:
    logits, labels = case()
    expected = F.cross_entropy(
        logits,
        labels.long(),
        weight=None if weights is None else torch.tensor(weights),
        ignore_index=255,
        label_smoothing=smoothing,
    )
    ours = loss_of({"main": logits}, labels, class_weights=weights, label_smoothing=smoothing)
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize(
    "how", [{}, {"ohem": 0.7}, {"class_weights": (1.0, 2.0, 3.0, 4.0)}, {"resize": "labels"}]
)
def test_a_batch_of_ignored_pixels_gives_zero_loss_and_gradient(how: dict[str, Any]) -> None:
    logits, labels = case()
    loss = loss_of({"main": logits}, torch.full_like(labels, 255), **how)
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert logits.grad is not None
    assert float(logits.grad.abs().max()) == 0.0


def hard_mean(logits: Tensor, labels: Tensor, threshold: float, least: int) -> float:
    """Mining written the slow way: sort pixels by the probability of their class, keep as the rule says."""
    kept = []
    for probability, label in zip(
        logits.softmax(1).permute(0, 2, 3, 1).reshape(-1, CLASSES), labels.flatten(), strict=True
    ):
        if label != 255:
            kept.append(float(probability[int(label)]))
    kept.sort()
    hard = [p for p in kept if p <= max(threshold, kept[min(least, len(kept)) - 1])]
    return -float(np.mean(np.log(hard)))


@pytest.mark.parametrize(("threshold", "keep"), [(0.7, 1 / 16), (0.05, 0.5), (1.0, 0.0), (0.3, 1.0)])
def test_mining_keeps_hard_pixels_and_a_minimum(threshold: float, keep: float) -> None:
    logits, labels = case()
    ours = loss_of({"main": logits}, labels, ohem=threshold, ohem_keep=keep)
    least = max(1, int(keep * labels.numel()))
    assert float(ours.detach()) == pytest.approx(
        hard_mean(logits.detach(), labels, threshold, least), rel=1e-5
    )


def test_auxiliary_outputs_count_with_their_coefficients() -> None:
    logits, labels = case()
    single = float(loss_of({"main": logits}, labels).detach())
    outputs = {"main": logits, "aux1": logits, "aux2": logits}
    total = loss_of(outputs, labels, auxiliary={"aux1": 0.2}, auxiliary_default=0.5)
    assert float(total.detach()) == pytest.approx(1.7 * single, rel=1e-5)


@pytest.mark.parametrize("align_corners", [False, True])
def test_small_logits_are_enlarged_as_the_plan_says(align_corners: bool) -> None:
    logits, labels = case()
    small = logits.detach()[:, :, ::4, ::4]
    large = F.interpolate(small, size=(12, 16), mode="bilinear", align_corners=align_corners)
    expected = F.cross_entropy(large, labels.long(), ignore_index=255)
    torch.testing.assert_close(loss_of({"main": small}, labels, align_corners=align_corners), expected)


def test_labels_can_be_shrunk_instead() -> None:
    logits, labels = case()
    small = logits.detach()[:, :, ::2, ::2]
    expected = F.cross_entropy(small, labels[:, ::2, ::2].long(), ignore_index=255)
    torch.testing.assert_close(loss_of({"main": small}, labels, resize="labels"), expected)


def test_balanced_weights_favour_rare_classes_and_drop_absent_ones() -> None:
    labels = np.array([[[0, 0, 0, 0, 1, 1, 3, 255]]], dtype=np.uint8)
    counts = count_labels(labels, CLASSES)
    assert counts.tolist() == [4, 2, 0, 1]
    weights = balanced_weights(counts)
    assert weights[3] > weights[1] > weights[0] > weights[2] == 0.0
    assert sum(weights) / 3 == pytest.approx(1.0)
    assert weights[0] / weights[1] == pytest.approx(np.log(1.02 + 2 / 7) / np.log(1.02 + 4 / 7))


@pytest.mark.parametrize(
    "wrong",
    [{"ohem": 1.5}, {"ohem_keep": 2.0}, {"label_smoothing": 1.0}, {"class_weights": (-1.0,)},
     {"balance": True, "class_weights": (1.0,)}],
)  # fmt: skip
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"loss\."):
        LossSettings(**wrong)


def test_one_weight_per_class_is_needed() -> None:
    with pytest.raises(UserError, match="3 weights for 4 classes"):
        SegmentationLoss(LossSettings(class_weights=(1.0, 1.0, 1.0)), classes=CLASSES, device=CPU)


def test_divergence_in_the_form_of_fasterseg_is_the_mean_over_all_values() -> None:
    student, teacher = case()[0], torch.randn(2, CLASSES, 12, 16)
    divergence = torch.nn.KLDivLoss(reduction="none")(student.log_softmax(1), teacher.softmax(1))
    expected = divergence.mean()
    how = DistillSettings(kind="kl", mean_over_classes=True)
    torch.testing.assert_close(distillation(student, teacher, how, align_corners=False), expected)
    per_pixel = distillation(student, teacher, DistillSettings(kind="kl"), align_corners=False)
    torch.testing.assert_close(per_pixel, CLASSES * expected)


def test_squared_error_resizes_the_student_to_the_teacher() -> None:
    student, teacher = case()[0], torch.randn(2, CLASSES, 24, 32)
    large = F.interpolate(student, size=(24, 32), mode="bilinear", align_corners=True)
    how = DistillSettings(kind="l2", weight=0.3)
    ours = distillation(student, teacher, how, align_corners=True)
    torch.testing.assert_close(ours, 0.3 * F.mse_loss(large, teacher))


def test_a_student_equal_to_its_teacher_has_no_loss() -> None:
    logits = case()[0]
    for how in (DistillSettings(kind="kl", temperature=4.0), DistillSettings(kind="l2")):
        assert float(distillation(logits, logits, how, align_corners=False).detach()) == pytest.approx(
            0, abs=1e-6
        )


def test_a_teacher_of_another_task_is_refused() -> None:
    with pytest.raises(UserError, match="5 classes"):
        distillation(torch.zeros(1, 4, 2, 2), torch.zeros(1, 5, 2, 2), DistillSettings(), align_corners=False)


def test_the_missed_overlap_is_one_less_the_mean_soft_iou_of_the_classes_that_occur() -> None:
    logits, labels = case()
    labels[labels == 3] = 2  # class 3 does not occur
    probability = logits.detach().double().softmax(1).numpy()
    truth = labels.numpy()
    shares = []
    for kind in range(3):
        both = predicted = true = 0.0
        for image, row, column in np.argwhere(truth != 255):
            value = probability[image, kind, row, column]
            here = truth[image, row, column] == kind
            both, predicted, true = both + value * here, predicted + value, true + here
        shares.append(1 - both / (predicted + true - both))
    assert missed_overlap(logits.detach(), labels).item() == pytest.approx(np.mean(shares), rel=1e-5)


def test_overlap_is_added_and_nothing_counted_gives_zero_with_a_gradient() -> None:
    logits, labels = case()
    plain, more = loss_of({"main": logits}, labels), loss_of({"main": logits}, labels, overlap=0.5)
    missed = missed_overlap(logits, labels).item()
    assert more.item() == pytest.approx(plain.item() + 0.5 * missed, rel=1e-5)
    nothing = torch.full_like(labels, 255)
    loss_of({"main": logits}, nothing, overlap=0.5).backward()
    assert logits.grad is not None
    assert float(logits.grad.abs().sum()) == 0.0
    with pytest.raises(UserError, match=r"loss\.overlap"):
        LossSettings(overlap=-1.0)

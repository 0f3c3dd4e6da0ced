"""Semantic segmentation as a kind of task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from segtailor.core.errors import UserError
from segtailor.core.task import Colour, Task
from segtailor.tasks.enlarging import enlarge
from segtailor.tasks.kind import TASK_KINDS, Forward, View
from segtailor.tasks.looks import Look, marked
from segtailor.tasks.loss_settings import LossSettings
from segtailor.tasks.segmentation.colour import UNLABELLED, overlay
from segtailor.tasks.segmentation.head import LabelHead as LabelsHead
from segtailor.tasks.segmentation.loss import SegmentationLoss, balanced_weights, count_labels
from segtailor.tasks.segmentation.metrics import Confusion, SegmentationScores
from segtailor.tasks.segmentation.targets import Labels, resized_labels

PAPER: Colour = (250, 250, 248)  # how what is not labelled looks in a legend


class Segmentation:
    """One class per pixel."""

    dtype = torch.uint8
    scores_type = SegmentationScores

    def targets(self, task: Task) -> Labels:
        """Labels in bytes."""
        return Labels(classes=task.outputs)

    def criterion(
        self, settings: LossSettings, *, task: Task, device: torch.device, align_corners: bool = False,
        seen: Callable[[], NDArray[Any]] | None = None,
    ) -> SegmentationLoss:  # fmt: skip
        """Cross-entropy; `balance` counts the training labels first."""
        used = ("ohem", "ohem_keep", "class_weights", "balance", "overlap", "label_smoothing")
        settings.only("segmentation", *used)
        if settings.balance and seen is not None:
            counts = count_labels(seen(), task.outputs)
            settings = replace(settings, balance=False, class_weights=balanced_weights(counts))
        return SegmentationLoss(settings, classes=task.outputs, device=device, align_corners=align_corners)

    def meter(self, task: Task, device: torch.device) -> Confusion:
        """One confusion matrix."""
        return Confusion(task.outputs, device)

    def decode(self, logits: Tensor, size: tuple[int, int], *, task: Task, align_corners: bool) -> Tensor:
        """Return integer labels (n, height, width): enlarge, arg max."""
        del task
        return enlarge(logits, size, align_corners=align_corners).argmax(1)

    def predict(self, forward: Forward, images: Tensor, *, task: Task, align_corners: bool) -> Tensor:
        """Label whole images."""
        size = (images.shape[2], images.shape[3])
        return self.decode(forward(images), size, task=task, align_corners=align_corners)

    def view(self, pixels: NDArray[np.uint8], task: Task) -> View:
        """Whole pictures as they are."""
        del task
        return View(pixels, lambda found: found)

    def head(self, task: Task, *, align_corners: bool) -> LabelsHead:
        """Labels at image size, uint8 up to 256 classes."""
        many = task.outputs > 256
        return LabelsHead(align_corners=align_corners, label_type=torch.int32 if many else torch.uint8)

    def finish(self, output: NDArray[Any], size: tuple[int, int], *, task: Task) -> NDArray[np.uint8]:
        """Return labels (height, width), resized by the nearest one where the file has another size."""
        if output.min() < 0 or output.max() >= task.outputs:
            raise UserError(f"gave label {int(output.max())}, but it has {task.outputs} classes.")
        labels = output.astype(np.uint8)
        return labels if labels.shape == size else resized_labels(labels, size)

    def resized(self, found: NDArray[Any], size: tuple[int, int], to: tuple[int, int]) -> NDArray[Any]:
        """Take the nearest label."""
        return found if size == to else resized_labels(found, to)

    def corner(self, found: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
        """Leave out what lies beside."""
        return found[: size[0], : size[1]]

    def agree(self, one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
        """Tell where labels are equal."""
        return np.asarray(one == other)

    def paint(self, image: NDArray[np.uint8], found: NDArray[Any], task: Task, look: Look) -> Image.Image:
        """Draw labels: a palette picture whose values are the ids, an overlay, or bare ids in greyscale."""
        if look.form == "overlay":
            return Image.fromarray(overlay(image, found, task.palette, look.opacity))
        painted = Image.fromarray(found)
        if look.form == "colour":
            flat = [value for colour in task.palette for value in colour]
            painted.putpalette(flat + [*UNLABELLED] * (256 - len(task.palette)))
        return painted

    def mark(
        self, image: NDArray[np.uint8], target: NDArray[Any], found: NDArray[Any], task: Task
    ) -> Image.Image:
        """Mark labels that are wrong."""
        return marked(image, ((found != target) & (target < task.outputs)).astype(np.float32))

    def legend(self, targets: Sequence[NDArray[Any]], task: Task) -> list[tuple[Colour, str]]:
        """Return every class with its share of the labelled pixels, and what is not labelled."""
        counts = np.sum([np.bincount(labels.ravel(), minlength=256) for labels in targets], axis=0)
        labelled = max(int(counts[: task.outputs].sum()), 1)
        lines: list[tuple[Colour, str]] = [
            (colour, f"{name} {counts[label] / labelled:.1%}")
            for label, (name, colour) in enumerate(zip(task.classes, task.palette, strict=True))
        ]
        beyond = counts[task.outputs :].sum() / max(int(counts.sum()), 1)
        if beyond > 0:
            lines.append((PAPER, f"(not labelled) {beyond:.1%} of all"))
        return lines

    def describe(self, found: NDArray[Any], task: Task) -> dict[str, float]:
        """Return for every class the share of pixels that carry it."""
        counts = Image.fromarray(found).histogram()  # numpy would first make integers of eight bytes
        shares = (count / found.size for count in counts[: task.outputs])
        return dict(zip(task.classes, shares, strict=True))


TASK_KINDS.add("segmentation", Segmentation())

"""Semantic segmentation as a kind of task: how labels are stored, predicted, computed in exported files and drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from segtailor.core.errors import DataProblem, UserError
from segtailor.core.task import IGNORE, Colour, Task
from segtailor.tasks.enlarging import enlarge
from segtailor.tasks.kind import Forward, Head, Look, View, mark_errors
from segtailor.tasks.loss_settings import LossSettings
from segtailor.tasks.segmentation.loss import SegmentationLoss, balanced_weights, count_labels
from segtailor.tasks.segmentation.metrics import Confusion, SegmentationScores
from segtailor.tasks.targets import Geometry, crop_nearest, rotate_maps

PAPER: Colour = (250, 250, 248)  # of unlabelled pixels in a legend
UNLABELLED: Colour = (0, 0, 0)  # of ignored pixels in pictures
VALUES_PER_BAND = 2**19  # 2 MiB, about the cache of a CPU core
ROWS_PER_STRIP = 128  # blended at a time: a whole large picture in single precision would take gigabytes


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Labels (height, width) in uint8, 255 for ignored pixels; values are checked only if `classes` is given."""

    classes: int | None = None
    missing: ClassVar[float] = IGNORE
    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.uint8)

    def shape(self, size: tuple[int, int]) -> tuple[int, ...]:
        """One label per pixel."""
        return size

    def check(self, target: NDArray[Any], *, name: str) -> None:
        """Refuse labels that are neither a class nor 255."""
        if self.classes is None:
            return
        strange = target[(target >= self.classes) & (target != IGNORE)]
        if strange.size:
            raise DataProblem(
                f"sample '{name}' has label {int(strange[0])}, but the task has {self.classes} classes "
                f"(0..{self.classes - 1}, {IGNORE} ignored). Correct the mask or the class list."
            )

    def crop(self, targets: Tensor, geometry: Geometry) -> Tensor:
        """Take the nearest label; outside of the source it is 255."""
        found = crop_nearest(targets, geometry)
        rows, columns = (
            ((1 - inside) * IGNORE).byte() for inside in (geometry.rows_inside, geometry.columns_inside)
        )
        return found.bitwise_or_(rows[:, :, None]).bitwise_or_(columns[:, None])  # 255 has all bits set

    def turn(self, targets: Tensor, angles: Tensor, size: tuple[int, int]) -> Tensor:
        """Take the nearest label; outside pixels become 255."""
        del size
        known = (IGNORE - targets.float())[:, None]  # inverted, since rotation fills with 0
        return (IGNORE - rotate_maps(known, angles, mode="nearest")[:, 0]).byte()

    def resized(self, target: NDArray[Any], size: tuple[int, int], to: tuple[int, int]) -> NDArray[Any]:
        """Take the nearest label."""
        return target if size == to else resized_labels(target, to)


def resized_labels(labels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Resize labels (height, width) by the nearest one."""
    return np.array(Image.fromarray(labels).resize(size[::-1], Image.Resampling.NEAREST), dtype=np.uint8)


class LabelHead(Head):
    """Upsample logits (N, classes, h, w) and take the arg max; labels are (N, height, width).

    An exported graph never holds all classes at image size. It interpolates by two small matrix products, first along
    the width, then along the height for one band of rows at a time, and takes the arg max of each band while it is in
    the cache. On a CPU (512x1024, 19 classes) this takes a fraction of the time of a resize and an arg max of the
    whole map. The matrices have torch's own weights, so the labels are the same up to ties.
    """

    def __init__(self, *, align_corners: bool, label_type: torch.dtype) -> None:
        super().__init__()
        self.align_corners = align_corners
        self.label_type = label_type
        self.spans: list[tuple[int, int]] = []
        self.across: Tensor

    def prepare(self, logits: torch.Size, size: tuple[int, int]) -> None:
        """Compute the matrices for one size; exported graphs use them."""
        (_, classes, height, width) = logits
        rows = max(1, VALUES_PER_BAND // (classes * size[1]))
        if (height, width) == size:
            return
        self.register_buffer("across", self._weights(width, size[1]), persistent=False)
        down = self._weights(height, size[0]).T
        for index, band in enumerate(torch.split(down, min(rows, size[0]))):
            used = band.abs().sum(0).nonzero().flatten()
            start, stop = int(used[0]), int(used[-1]) + 1
            self.spans.append((start, stop))
            self.register_buffer(f"down{index}", band[:, start:stop].contiguous(), persistent=False)

    def forward(self, logits: Tensor, size: tuple[int, int]) -> Tensor:
        """Return the labels; outside of exported graphs by torch's own kernels."""
        if not self.spans or not torch.compiler.is_exporting():
            full = enlarge(logits, size, align_corners=self.align_corners)
            return full.argmax(1).to(self.label_type)
        wide = logits.to(self.across.dtype) @ self.across
        bands = []
        for index, (start, stop) in enumerate(self.spans):
            rows = getattr(self, f"down{index}") @ wide[:, :, start:stop]
            bands.append(rows.argmax(1).to(self.label_type))
        return torch.cat(bands, dim=1)

    def small(self, logits: Tensor) -> Tensor:
        """Return the labels at the stride of the logits."""
        return logits.argmax(1).to(self.label_type)

    def _weights(self, side: int, wanted: int) -> Tensor:
        """Return the weights (side, wanted) of a resize along one side: the result for each unit vector."""
        units = torch.eye(side)[None, :, :, None]
        return enlarge(units, (wanted, 1), align_corners=self.align_corners)[0, :, :, 0].contiguous()


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

    def head(self, task: Task, *, align_corners: bool) -> LabelHead:
        """Labels at image size, uint8 up to 256 classes."""
        many = task.outputs > 256
        return LabelHead(align_corners=align_corners, label_type=torch.int32 if many else torch.uint8)

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
        """Cut the upper left part."""
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
        return mark_errors(image, ((found != target) & (target < task.outputs)).astype(np.float32))

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
        """Return the share of pixels of every class."""
        counts = Image.fromarray(
            found
        ).histogram()  # np.bincount would first make a copy in eight bytes per pixel
        shares = (count / found.size for count in counts[: task.outputs])
        return dict(zip(task.classes, shares, strict=True))


def colourise(labels: NDArray[np.uint8], palette: Sequence[Colour]) -> NDArray[np.uint8]:
    """Return the labels (height, width) as RGB (height, width, 3); ids beyond the palette are black."""
    painted: NDArray[np.uint8] = _table(palette)[labels]
    return painted


def overlay(
    image: NDArray[np.uint8], labels: NDArray[np.uint8], palette: Sequence[Colour], opacity: float = 0.55
) -> NDArray[np.uint8]:
    """Blend the colours of the labels with an image; ignored pixels show the image alone."""
    weight = np.zeros(256, np.float32)
    weight[: len(palette)] = opacity
    mixed = np.empty_like(image)
    for top in range(0, len(image), ROWS_PER_STRIP):
        rows = slice(top, top + ROWS_PER_STRIP)
        share = weight[labels[rows]][..., None]
        mixed[rows] = image[rows] * (1 - share) + colourise(labels[rows], palette) * share + 0.5
    return mixed


def _table(palette: Sequence[Colour]) -> NDArray[np.uint8]:
    table = np.empty((256, 3), np.uint8)
    table[:] = UNLABELLED
    table[: len(palette)] = np.array(palette, np.uint8).reshape(-1, 3)
    return table


SEGMENTATION = Segmentation()

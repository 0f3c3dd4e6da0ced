"""Monocular depth as a kind of task: one output channel that is linear in metres."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from segtailor.core.errors import UserError
from segtailor.core.registry import TASK_KINDS
from segtailor.core.task import Colour, Task
from segtailor.tasks.depth.colours import GAP, colourise, shown_span, table, with_scale
from segtailor.tasks.depth.loss import InverseHuber
from segtailor.tasks.depth.metrics import DepthMeter, DepthScores
from segtailor.tasks.depth.targets import DepthMaps
from segtailor.tasks.enlarging import enlarge
from segtailor.tasks.kind import Forward, Head, View
from segtailor.tasks.looks import Look, marked
from segtailor.tasks.loss_settings import LossSettings

SPAN = (0.1, 100.0)  # metres that count where a task does not say
CLOSE = 0.01  # predictions that differ by at most this share are the same but for rounding
FAR_OFF = 0.5  # share of the true depth at which an error is drawn in full
MILLIMETRES = 1000


class Depth:
    """The distance of each pixel, in metres."""

    dtype = torch.float32
    scores_type = DepthScores

    def targets(self, task: Task) -> DepthMaps:
        """Metres, 0 for gaps."""
        del task
        return DepthMaps()

    def criterion(
        self, settings: LossSettings, *, task: Task, device: torch.device, align_corners: bool = False,
        seen: Callable[[], NDArray[Any]] | None = None,
    ) -> InverseHuber:  # fmt: skip
        """Inverse Huber."""
        del task, device, seen
        return InverseHuber(settings, align_corners=align_corners)

    def meter(self, task: Task, device: torch.device) -> DepthMeter:
        """Averages over images, of the depths within the task's span."""
        return DepthMeter(task.span or SPAN, device)

    def decode(self, logits: Tensor, size: tuple[int, int], *, task: Task, align_corners: bool) -> Tensor:
        """Return metres (n, height, width), within the task's span."""
        near, far = task.span or SPAN
        return enlarge(logits, size, align_corners=align_corners)[:, 0].clamp(near, far)

    def predict(self, forward: Forward, images: Tensor, *, task: Task, align_corners: bool) -> Tensor:
        """Predict whole images."""
        size = (images.shape[2], images.shape[3])
        return self.decode(forward(images), size, task=task, align_corners=align_corners)

    def view(self, pixels: NDArray[np.uint8], task: Task) -> View:
        """Whole pictures as they are."""
        del task
        return View(pixels, lambda found: found)

    def head(self, task: Task, *, align_corners: bool) -> Metres:
        """Metres at image size."""
        return Metres(task.span or SPAN, align_corners=align_corners)

    def finish(self, output: NDArray[Any], size: tuple[int, int], *, task: Task) -> NDArray[np.float32]:
        """Return metres (height, width), resized smoothly where the file has another size."""
        del task
        if not np.isfinite(output).all():
            raise UserError("gave depths that are no numbers.")
        found = output.astype(np.float32)
        return self.resized(found, (found.shape[0], found.shape[1]), size)

    def resized(self, found: NDArray[Any], size: tuple[int, int], to: tuple[int, int]) -> NDArray[Any]:
        """Resize smoothly: a prediction has no gaps."""
        if size == to:
            return found
        return np.array(Image.fromarray(found).resize(to[::-1], Image.Resampling.BILINEAR), dtype=np.float32)

    def corner(self, found: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
        """Leave out what lies beside."""
        return found[: size[0], : size[1]]

    def agree(self, one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
        """Tell where depths differ by at most one percent."""
        return np.asarray(np.abs(one - other) <= CLOSE * np.maximum(np.abs(one), np.abs(other)))

    def paint(self, image: NDArray[np.uint8], found: NDArray[Any], task: Task, look: Look) -> Image.Image:
        """Draw depth in colours with their scale, colours over the picture, or 16-bit millimetres (`ids`)."""
        del task
        if look.form == "ids":
            return Image.fromarray(np.clip(np.rint(found * MILLIMETRES), 0, 65535).astype(np.uint16))
        span = shown_span(found)
        painted = colourise(found, span)
        if look.form == "overlay":
            painted = (image * (1 - look.opacity) + painted * look.opacity + 0.5).astype(np.uint8)
        return with_scale(painted, span)

    def mark(
        self, image: NDArray[np.uint8], target: NDArray[Any], found: NDArray[Any], task: Task
    ) -> Image.Image:
        """Mark depths the stronger, the larger their share of the true one is that they are off."""
        del task
        known = target > 0
        off = np.abs(found - target) / np.where(known, target, 1.0)
        return marked(image, np.where(known, off / FAR_OFF, 0.0))

    def legend(self, targets: Sequence[NDArray[Any]], task: Task) -> list[tuple[Colour, str]]:
        """Return the range of the depths, and how much was not measured."""
        del task
        known = np.concatenate([depth[depth > 0].ravel() for depth in targets])
        near, far = (float(value) for value in np.percentile(known, (0, 100))) if known.size else (0.0, 0.0)
        gaps = 1 - known.size / max(1, sum(depth.size for depth in targets))
        light, dark = (tuple(int(part) for part in table()[level]) for level in (255, 0))
        return [
            ((light[0], light[1], light[2]), f"nearest {near:.2f} m"),
            ((dark[0], dark[1], dark[2]), f"farthest {far:.2f} m"),
            (GAP, f"not measured {gaps:.1%}"),
        ]

    def describe(self, found: NDArray[Any], task: Task) -> dict[str, float]:
        """Return nearest, median and farthest depth in metres."""
        del task
        near, middle, far = (float(value) for value in np.percentile(found, (0, 50, 100)))
        return {"nearest_m": near, "median_m": middle, "farthest_m": far}


class Metres(Head):
    """Enlarge the only channel and keep it within the span; depth is (N, height, width) in metres."""

    def __init__(self, span: tuple[float, float], *, align_corners: bool) -> None:
        super().__init__()
        self.span, self.align_corners = span, align_corners

    def forward(self, logits: Tensor, size: tuple[int, int]) -> Tensor:
        """Return the depth at a size."""
        return self.small(enlarge(logits, size, align_corners=self.align_corners))

    def small(self, logits: Tensor) -> Tensor:
        """Return the depth at the stride of the logits."""
        return logits[:, 0].clamp(*self.span)


TASK_KINDS.add("depth", Depth())

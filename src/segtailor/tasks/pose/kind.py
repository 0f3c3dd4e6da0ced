"""Human pose as a kind of task: one heat map per joint at a quarter of the size, one person per crop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from segtailor.core.errors import DataProblem, UserError
from segtailor.core.task import Colour, Task
from segtailor.tasks.kind import Forward, Head, Look, View, pale_picture
from segtailor.tasks.loss_settings import LossSettings
from segtailor.tasks.pose.crops import crop_of
from segtailor.tasks.pose.drawing import COLOURS, draw_misses, draw_skeleton
from segtailor.tasks.pose.heatmaps import HeatMaps, flip_test, resize_maps
from segtailor.tasks.pose.scoring import PoseMeter, PoseScores
from segtailor.tasks.pose.skeletons import Skeleton, skeleton_called
from segtailor.tasks.targets import Geometry

STRIDE = 4
CROP = (256, 192)
# Predictions that differ by rounding alone: neighbouring values of a map, or two peaks, can be equally high.
SAME_PLACE_PIXELS = 2.0 * STRIDE
SAME_PEAK = 1e-3


@dataclass(frozen=True, kw_only=True)
class JointRows:
    """Targets (joints + 1, 3) in crops of `size` (height, width): x, y and visibility of each joint in pixels.

    The last row is (head size, area, 0) in pixels of the crop: the divisors of PCKh and OKS, 0 where unknown.
    """

    skeleton: Skeleton
    size: tuple[int, int]
    missing: ClassVar[float] = 0.0
    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.float32)

    def shape(self, size: tuple[int, int]) -> tuple[int, ...]:
        """One row per joint and one of measures, for any size."""
        del size
        return self.skeleton.count + 1, 3

    def check(self, target: NDArray[Any], *, name: str) -> None:
        """Refuse values that are not finite."""
        if not np.isfinite(target).all():
            raise DataProblem(f"sample '{name}' has joints that are not numbers; set their visibility to 0.")

    def crop(self, targets: Tensor, geometry: Geometry) -> Tensor:
        """Move the joints into the crops; left and right are exchanged where a crop is mirrored."""
        if geometry.size != self.size:
            raise UserError(
                f"crops of {geometry.size[0]}x{geometry.size[1]} do not fit people of {self.size[0]}x{self.size[1]}; "
                "leave augment.crop out, or give the data the same size."
            )
        rows = targets.index_select(0, geometry.image.flatten())
        lines = geometry.lines[:, None]
        x = (rows[..., 0] - lines[..., 2]) / lines[..., 3]
        y = (rows[..., 1] - lines[..., 0]) / lines[..., 1]
        other = torch.tensor([*self.skeleton.mirrored, self.skeleton.count], device=rows.device)
        found = self._labelled(torch.stack([x, y, rows[..., 2]], dim=-1))
        found = torch.where(lines[..., 3:4] < 0, found.index_select(1, other), found)
        down, across = lines[:, 0, 1].abs(), lines[:, 0, 3].abs()
        measures = torch.stack(
            [rows[:, -1, 0] / (down * across).sqrt(), rows[:, -1, 1] / (down * across)], dim=1
        )
        found[:, -1] = torch.nn.functional.pad(measures, (0, 1))
        return found

    def turn(self, targets: Tensor, angles: Tensor, size: tuple[int, int]) -> Tensor:
        """Rotate the joints with the crop; joints outside of it become unlabelled."""
        middle = targets.new_tensor([(size[1] - 1) / 2, (size[0] - 1) / 2])
        x, y = (targets[..., :2] - middle).unbind(-1)
        cosine, sine = angles.cos()[:, None], angles.sin()[:, None]
        places = torch.stack([cosine * x - sine * y, sine * x + cosine * y], dim=-1) + middle
        found = self._labelled(torch.cat([places, targets[..., 2:]], dim=-1))
        found[:, -1] = targets[:, -1]
        return found

    def resized(self, target: NDArray[Any], size: tuple[int, int], to: tuple[int, int]) -> NDArray[Any]:
        """Move the joints as the pixels move."""
        down, across = to[0] / size[0], to[1] / size[1]
        found = np.array(target, dtype=np.float32)
        found[:-1, 0] = (found[:-1, 0] + 0.5) * across - 0.5
        found[:-1, 1] = (found[:-1, 1] + 0.5) * down - 0.5
        found[-1, :2] *= (float(np.sqrt(down * across)), down * across)
        return found

    def _labelled(self, joints: Tensor) -> Tensor:
        """Set joints outside of the crop, and those that were not labelled, to 0."""
        height, width = self.size
        x, y, seen = joints.unbind(-1)
        inside = (x >= -0.5) & (x < width - 0.5) & (y >= -0.5) & (y < height - 0.5) & (seen > 0)
        return joints * inside[..., None]


class SquaredMaps:
    """Mean squared error between outputs and Gaussian maps, over labelled joints."""

    def __init__(self, settings: LossSettings, *, size: tuple[int, int], align_corners: bool) -> None:
        settings.only("pose")
        self.settings = settings
        self.align_corners = align_corners
        self.maps = HeatMaps(size=size, stride=STRIDE)

    @property
    def global_normaliser(self) -> bool:
        """Parts of a batch can share the number of joints."""
        return True

    def normaliser(self, targets: Tensor) -> Tensor:
        """Return the number of labelled joints."""
        return (targets[:, :-1, 2] > 0).sum(dtype=torch.float32)

    def __call__(self, outputs: Mapping[str, Tensor], targets: Tensor, *, normaliser: Tensor) -> Tensor:
        """Return the weighted sum over outputs."""
        wanted, weights = self.maps.encode(targets[:, :-1])
        terms = []
        for name, logits in outputs.items():
            errors = (resize_maps(logits.float(), self.maps.shape) - wanted).square().mean((2, 3))
            total = (errors * weights).sum() / normaliser.clamp(min=1)
            terms.append(self.settings.coefficient(name) * total)
        return torch.stack(terms).sum()


class QuarterMaps(Head):
    """Resize the maps to a quarter of the image; some networks (auxiliary cells arch1 and arch2) end at an eighth."""

    def forward(self, logits: Tensor, size: tuple[int, int]) -> Tensor:
        """Return the maps (N, joints, height / 4, width / 4)."""
        return resize_maps(logits, _map_size(size))

    def small(self, logits: Tensor) -> Tensor:
        """Return the maps as they are."""
        return logits


class Pose:
    """The joints of one person per crop."""

    dtype = torch.float32
    scores_type = PoseScores

    def targets(self, task: Task) -> JointRows:
        """Joints in pixels of the crop."""
        return JointRows(skeleton=_skeleton(task), size=task.crop or CROP)

    def criterion(
        self, settings: LossSettings, *, task: Task, device: torch.device, align_corners: bool = False,
        seen: Callable[[], NDArray[Any]] | None = None,
    ) -> SquaredMaps:  # fmt: skip
        """Squared error of heat maps."""
        del device, seen
        return SquaredMaps(settings, size=task.crop or CROP, align_corners=align_corners)

    def meter(self, task: Task, device: torch.device) -> PoseMeter:
        """All joints, compared at the end."""
        del device
        return PoseMeter(_skeleton(task))

    def decode(self, logits: Tensor, size: tuple[int, int], *, task: Task, align_corners: bool) -> Tensor:
        """Return joints (n, joints, 3) as x, y in pixels and the height of the peak."""
        del task, align_corners
        maps = resize_maps(logits.float(), _map_size(size))
        whole = (_map_size(size)[0] * STRIDE, _map_size(size)[1] * STRIDE)
        found = HeatMaps(size=whole, stride=STRIDE).decode(maps)
        scale = found.new_tensor([size[1] / whole[1], size[0] / whole[0], 1.0])
        return (found + 0.5) * scale - 0.5 * scale.new_tensor([1.0, 1.0, 1.0])

    def predict(self, forward: Forward, images: Tensor, *, task: Task, align_corners: bool) -> Tensor:
        """Average the maps of each crop and of its mirror image, then decode."""
        size = (images.shape[2], images.shape[3])
        maps = flip_test(forward, images, _skeleton(task))
        return self.decode(maps, size, task=task, align_corners=align_corners)

    def view(self, pixels: NDArray[np.uint8], task: Task) -> View:
        """Take the whole picture as the box of one person, at the size of the crops."""
        height, width = pixels.shape[:2]
        crop = crop_of((0.0, 0.0, float(width), float(height)), task.crop or CROP, margin=1.0)
        if (height, width) == crop.size:
            return View(pixels, lambda found: found)
        return View(crop.cut(pixels), crop.to_picture)

    def head(self, task: Task, *, align_corners: bool) -> QuarterMaps:
        """Heat maps at a quarter of the image's size."""
        del task, align_corners
        return QuarterMaps()

    def finish(self, output: NDArray[Any], size: tuple[int, int], *, task: Task) -> NDArray[np.float32]:
        """Return joints (joints, 3) in pixels of the picture."""
        if not np.isfinite(output).all():
            raise UserError("gave heat maps that are not numbers.")
        maps = torch.from_numpy(output.astype(np.float32))[None]
        return self.decode(maps, size, task=task, align_corners=False)[0].numpy()

    def resized(self, found: NDArray[Any], size: tuple[int, int], to: tuple[int, int]) -> NDArray[Any]:
        """Move joints as the pixels move."""
        factors = np.array([to[1] / size[1], to[0] / size[0]], np.float32)
        moved = np.array(found, np.float32)
        moved[:, :2] = (moved[:, :2] + 0.5) * factors - 0.5
        return moved

    def corner(self, found: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
        """Return the joints as they are: they are measured from the upper left corner."""
        del size
        return found

    def agree(self, one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
        """Tell which joints have the same place or the same peak value: a flat map has many equal peaks."""
        apart = np.hypot(*np.moveaxis(one[..., :2] - other[..., :2], -1, 0))
        return np.asarray((apart <= SAME_PLACE_PIXELS) | (np.abs(one[..., 2] - other[..., 2]) <= SAME_PEAK))

    def paint(self, image: NDArray[np.uint8], found: NDArray[Any], task: Task, look: Look) -> Image.Image:
        """Draw the skeleton over the picture, or alone on black (`ids`)."""
        below = np.zeros_like(image) if look.form == "ids" else image
        return Image.fromarray(draw_skeleton(below, [found[: task.outputs]], _skeleton(task)))

    def mark(
        self, image: NDArray[np.uint8], target: NDArray[Any], found: NDArray[Any], task: Task
    ) -> Image.Image:
        """Draw a line from each labelled joint to the predicted one."""
        return Image.fromarray(
            draw_misses(pale_picture(image), target[: task.outputs], found[: task.outputs])
        )

    def legend(self, targets: Sequence[NDArray[Any]], task: Task) -> list[tuple[Colour, str]]:
        """Return the sides of the body, and how many joints are labelled."""
        labelled = float(np.mean([target[: task.outputs, 2] > 0 for target in targets]))
        sides = [(colour, f"{side} of the person") for side, colour in COLOURS.items()]
        return [*sides, ((0, 0, 0), f"labelled {labelled:.1%} of all joints")]

    def describe(self, found: NDArray[Any], task: Task) -> dict[str, float]:
        """Return the peak value of each joint."""
        return {name: float(row[2]) for name, row in zip(task.classes, found, strict=True)}


def _map_size(size: tuple[int, int]) -> tuple[int, int]:
    return max(1, size[0] // STRIDE), max(1, size[1] // STRIDE)


def _skeleton(task: Task) -> Skeleton:
    skeleton = skeleton_called(task.skeleton or "")
    if skeleton.joints != task.classes:
        raise DataProblem(
            f"the task names {task.outputs} joints, skeleton '{skeleton.name}' has {skeleton.count}; use one for both."
        )
    return skeleton


POSE = Pose()

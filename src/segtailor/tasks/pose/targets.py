"""The joints of one person as an array: x, y and visibility in pixels of the crop, and a last row of measures.

The last row is (head size, area, 0) in pixels of the crop: what PCKh and OKS divide by, 0 where it is not known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segtailor.core.errors import DataProblem, UserError
from segtailor.tasks.pose.skeletons import Skeleton
from segtailor.tasks.targets import Geometry


@dataclass(frozen=True, kw_only=True)
class JointRows:
    """Joints of a skeleton in crops of `size` (height, width)."""

    skeleton: Skeleton
    size: tuple[int, int]
    missing: ClassVar[float] = 0.0
    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.float32)

    def shape(self, size: tuple[int, int]) -> tuple[int, ...]:
        """One row per joint and one of measures, whatever the size."""
        del size
        return self.skeleton.count + 1, 3

    def check(self, target: NDArray[Any], *, name: str) -> None:
        """Refuse places that are no numbers."""
        if not np.isfinite(target).all():
            raise DataProblem(f"sample '{name}' has joints that are no numbers; set their visibility to 0.")

    def crop(self, targets: Tensor, geometry: Geometry) -> Tensor:
        """Move the joints into the crops; left and right change places where a crop is mirrored."""
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
        """Turn the joints with the crop; those that leave it are no longer labelled."""
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

"""Labels: one byte per pixel, 255 where nothing is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from segtailor.core.errors import DataProblem
from segtailor.core.task import IGNORE
from segtailor.tasks.targets import Geometry, nearest
from segtailor.tasks.turning import turned


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Labels of `classes` classes; without a number nothing is checked."""

    classes: int | None = None
    missing: ClassVar[float] = IGNORE
    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.uint8)

    def shape(self, size: tuple[int, int]) -> tuple[int, ...]:
        """One label per pixel."""
        return size

    def check(self, target: NDArray[Any], *, name: str) -> None:
        """Refuse labels of no class."""
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
        found = nearest(targets, geometry)
        rows, columns = (
            ((1 - inside) * IGNORE).byte() for inside in (geometry.rows_inside, geometry.columns_inside)
        )
        return found.bitwise_or_(rows[:, :, None]).bitwise_or_(columns[:, None])  # 255 has all bits set

    def turn(self, targets: Tensor, angles: Tensor, size: tuple[int, int]) -> Tensor:
        """Take the nearest label; what comes from outside is 255."""
        del size
        known = (IGNORE - targets.float())[:, None]  # so that 0, what lies outside, is the ignored label
        return (IGNORE - turned(known, angles, mode="nearest")[:, 0]).byte()

    def resized(self, target: NDArray[Any], size: tuple[int, int], to: tuple[int, int]) -> NDArray[Any]:
        """Take the nearest label: between two class numbers there is none."""
        return target if size == to else resized_labels(target, to)


def resized_labels(labels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Resize labels (height, width) by the nearest one."""
    return np.array(Image.fromarray(labels).resize(size[::-1], Image.Resampling.NEAREST), dtype=np.uint8)

"""Depth maps: metres in single precision, 0 where nothing was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from segtailor.core.errors import DataProblem
from segtailor.tasks.targets import Geometry, nearest
from segtailor.tasks.turning import turned


@dataclass(frozen=True, kw_only=True)
class DepthMaps:
    """Depth is resampled by the nearest value: between a near and a far surface, or beside a gap, there is nothing.

    A picture that is enlarged by s looks as if its camera stood s times as near: depths are divided by s, unless the
    augmentation says otherwise.
    """

    missing: ClassVar[float] = 0.0
    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.float32)

    def shape(self, size: tuple[int, int]) -> tuple[int, ...]:
        """One depth per pixel."""
        return size

    def check(self, target: NDArray[Any], *, name: str) -> None:
        """Refuse depths that no camera measures; gaps are 0."""
        if not np.isfinite(target).all() or (target < 0).any():
            raise DataProblem(
                f"sample '{name}' has depths that are negative or no numbers; write 0 where nothing was measured."
            )

    def crop(self, targets: Tensor, geometry: Geometry) -> Tensor:
        """Take the nearest depth, 0 outside of the source, and divide by the scale."""
        found = nearest(targets, geometry)
        found.mul_(geometry.rows_inside[:, :, None]).mul_(geometry.columns_inside[:, None])
        if geometry.rescale:
            found.mul_(geometry.lines[:, 1].abs()[:, None, None])
        return found

    def turn(self, targets: Tensor, angles: Tensor, size: tuple[int, int]) -> Tensor:
        """Take the nearest depth; what comes from outside is a gap."""
        del size
        return turned(targets[:, None], angles, mode="nearest")[:, 0]

    def resized(self, target: NDArray[Any], size: tuple[int, int], to: tuple[int, int]) -> NDArray[Any]:
        """Take the nearest depth as it is."""
        if size == to:
            return target
        return np.array(Image.fromarray(target).resize(to[::-1], Image.Resampling.NEAREST), dtype=np.float32)

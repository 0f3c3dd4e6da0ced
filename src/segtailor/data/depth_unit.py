"""From the whole numbers in a depth file to metres: 0 is no measurement."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from segtailor.core.codec import fingerprint
from segtailor.core.errors import DataProblem
from segtailor.data.files import RawMask

Unit: TypeAlias = Literal["mm", "cm", "m"]
PER_METRE = {"mm": 1000.0, "cm": 100.0, "m": 1.0}


@dataclass(frozen=True, kw_only=True)
class DepthUnit:
    """What one step of the files' numbers is."""

    per_metre: float = PER_METRE["mm"]

    def __post_init__(self) -> None:
        if not 0 < self.per_metre < float("inf"):
            raise DataProblem(f"{self.per_metre} steps per metre are no unit; give unit=mm, cm or m.")

    @cached_property
    def fingerprint(self) -> str:
        """Changes with the unit."""
        return fingerprint(["depth", self.per_metre])

    def apply(self, raw: RawMask, path: Path) -> NDArray[np.float32]:
        """Return metres (height, width); what cannot be a depth map raises `DataProblem`."""
        values = raw.values
        if values.ndim != 2 or raw.palette is not None:
            raise DataProblem(
                f"depth map {path} holds colours; depth is one 16-bit number per pixel. Export it again as such."
            )
        if values.dtype == np.uint8:
            raise DataProblem(
                f"depth map {path} has 8 bits per pixel, 256 steps for all distances; export it again with 16 bits."
            )
        depth = np.asarray(values, dtype=np.float64) / self.per_metre
        if (depth < 0).any():
            raise DataProblem(f"depth map {path} holds negative depths; write 0 where nothing was measured.")
        return depth.astype(np.float32)

"""A user's own images and 16-bit depth maps, in the same layouts as images and masks (`data.folder`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from segtailor.core.codec import fingerprint
from segtailor.core.errors import DataProblem
from segtailor.core.task import Task
from segtailor.data.files import RawMask
from segtailor.data.folder import IMAGE_FOLDERS, MASK_FOLDERS, UNDIVIDED, FolderLayout
from segtailor.data.pairs import DEFAULT_VAL_SHARE, FileDataset, Pairing, divide_pairing

DEPTH_FOLDERS = ("depth", "depths", "depth_mm", "depth_maps", *MASK_FOLDERS)
COLOUR_FOLDERS = (*IMAGE_FOLDERS, "rgb", "colour", "color")
Unit: TypeAlias = Literal["mm", "cm", "m"]
PER_METRE = {"mm": 1000.0, "cm": 100.0, "m": 1.0}


@dataclass(frozen=True, kw_only=True)
class DepthFolder(FileDataset):
    """Images and 16-bit depth maps below one folder, or in one list file; 0 means not measured.

    `unit` is what the numbers count (mm, cm, m), `nearest` and `farthest` bound the depths in metres that are scored.
    Where files are not divided, `val` and `test` are drawn by `seed`.
    """

    images: str | None = None
    masks: str | None = None
    unit: Unit = "mm"
    nearest: float = 0.1
    farthest: float = 100.0
    val: float | None = None
    test: float | None = None
    seed: int = 0

    @cached_property
    def task(self) -> Task:
        """Depth within the bounds."""
        return depth_task(self.nearest, self.farthest)

    @property
    def labels(self) -> DepthUnit:
        """What the numbers in depth files mean."""
        return DepthUnit(per_metre=PER_METRE[self.unit])

    def find(self) -> Mapping[str, Pairing]:
        """Find the files, and divide them into splits where they are not divided yet."""
        layout = FolderLayout(
            path=self.path,
            images=self.images,
            masks=self.masks,
            image_folders=COLOUR_FOLDERS,
            mask_folders=DEPTH_FOLDERS,
        )
        return divide_if_needed(layout.find(), where=self.path, val=self.val, test=self.test, seed=self.seed)


@dataclass(frozen=True, kw_only=True)
class DepthUnit:
    """The unit of the whole numbers in depth files; 0 means not measured."""

    per_metre: float = PER_METRE["mm"]

    def __post_init__(self) -> None:
        if not 0 < self.per_metre < float("inf"):
            raise DataProblem(f"{self.per_metre} steps per metre are not a unit; give unit=mm, cm or m.")

    @cached_property
    def fingerprint(self) -> str:
        """Changes with the unit."""
        return fingerprint(["depth", self.per_metre])

    def apply(self, raw: RawMask, path: Path) -> NDArray[np.float32]:
        """Return metres (height, width); a file that cannot be a depth map raises `DataProblem`."""
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


def depth_task(nearest: float, farthest: float) -> Task:
    """Return the task of depths within bounds."""
    return Task(classes=("depth",), kind="depth", span=(nearest, farthest))


def divide_if_needed(
    found: Mapping[str, Pairing], *, where: Path, val: float | None, test: float | None, seed: int
) -> dict[str, Pairing]:
    """Divide the files by ratio unless they have splits."""
    if UNDIVIDED not in found:
        return dict(found)
    share = DEFAULT_VAL_SHARE if val is None else val
    return divide_pairing(found[UNDIVIDED], where=where, val=share, test=test or 0.0, seed=seed)

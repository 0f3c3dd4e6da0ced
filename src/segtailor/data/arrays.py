"""The feature cache: arrays that are expensive to compute, in memory-mapped files with a record of their inputs.

A folder holds one flat file per array and an index. It appears by one atomic rename. A folder made from other inputs is
refused, and a disk that is too small is reported before anything is computed.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segtailor.core.atomic import new_folder, write_json
from segtailor.core.codec import Json, canonical, read_json, short
from segtailor.core.errors import DataProblem, UserError
from segtailor.data.cache import only_builder

FORMAT = 1
INDEX = "index.json"
MIN_FREE_BYTES = 64 * 2**20  # left free on the disk


@dataclass(frozen=True, kw_only=True)
class ArraySpec:
    """Shape (samples first) and type of an array."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def nbytes(self) -> int:
        """Size of its file."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, kw_only=True)
class ArrayStore:
    """The folder of some arrays, the inputs they are made from (`about`, plain data), and their shapes and types."""

    folder: Path
    about: Mapping[str, Json]
    arrays: Mapping[str, ArraySpec]

    @property
    def nbytes(self) -> int:
        """Size of all files."""
        return sum(spec.nbytes for spec in self.arrays.values())

    def ready(self) -> bool:
        """Tell whether the files are complete; files made from other inputs raise `DataProblem`."""
        if not (self.folder / INDEX).exists():
            return False
        try:
            index: Any = read_json(self.folder / INDEX, what="index of the feature cache")
            about, version = index["about"], index["format"]
        except (UserError, KeyError, TypeError):
            return False  # damaged: the arrays are computed again
        for field in sorted({*self.about, *about}):
            wanted, found = self.about.get(field), about.get(field)
            if canonical(wanted) != canonical(found):
                raise DataProblem(
                    f"the feature cache {self.folder} was made from other data: its {field} is {short(found)}, "
                    f"wanted is {short(wanted)}. Remove the folder, or give another one."
                )
        sizes = {name: (self.folder / name) for name in self.arrays}
        whole = all(
            path.exists() and path.stat().st_size == self.arrays[name].nbytes for name, path in sizes.items()
        )
        return bool(version == FORMAT and whole)

    def open(self, fill: Callable[[], Iterator[Mapping[str, NDArray[Any]]]]) -> dict[str, NDArray[Any]]:
        """Map the arrays; where they are missing, `fill` computes them, a few samples at a time."""
        if not self.ready():
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            with only_builder(self.folder):
                if not self.ready():  # another process may have finished while we waited
                    check_space([self])
                    self._write(fill)
        return {
            name: np.memmap(self.folder / name, dtype=spec.dtype, mode="r", shape=spec.shape)
            for name, spec in self.arrays.items()
        }

    def _write(self, fill: Callable[[], Iterator[Mapping[str, NDArray[Any]]]]) -> None:
        with new_folder(self.folder, what="feature cache") as draft:
            files = {name: (draft / name).open("wb") for name in self.arrays}
            try:
                for rows in fill():
                    for name, file in files.items():
                        file.write(np.ascontiguousarray(rows[name], dtype=self.arrays[name].dtype).data)
            finally:
                for file in files.values():
                    file.close()
            for name, spec in self.arrays.items():
                if (draft / name).stat().st_size != spec.nbytes:
                    raise ValueError(
                        f"array '{name}' has {(draft / name).stat().st_size} bytes, not {spec.nbytes}"
                    )
            write_json(draft / INDEX, {"format": FORMAT, "about": dict(self.about)}, what="index")


def check_space(stores: list[ArrayStore]) -> None:
    """Raise `DataProblem` where the disk is too small for the stores that are still missing."""
    missing = [store for store in stores if not store.ready()]
    if not missing:
        return
    place = missing[0].folder.absolute()
    existing = next(parent for parent in place.parents if parent.exists())
    need, free = sum(store.nbytes for store in missing), shutil.disk_usage(existing).free
    if need + MIN_FREE_BYTES > free:
        raise DataProblem(
            f"the feature cache needs {need / 2**30:.2f} GiB below {existing}, where {free / 2**30:.2f} GiB are free. "
            "Free some space, choose another cache folder (--cache), or keep fewer images (--set evaluator.images=...)."
        )

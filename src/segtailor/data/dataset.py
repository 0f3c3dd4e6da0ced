"""What a dataset is: named splits of samples that read one image and its labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from segtailor.core.registry import Registry
from segtailor.core.task import Task


class Pair(NamedTuple):
    """One decoded sample, uint8: image (height, width, 3), labels (height, width); label 255 is ignored."""

    image: NDArray[np.uint8]
    labels: NDArray[np.uint8]


class Sample(Protocol):
    """One image with its mask, not yet read."""

    @property
    def name(self) -> str:
        """Unique within the split; used in reports and messages."""

    @property
    def stamp(self) -> str:
        """Changes when the content changes (path, size and time of the files, or seed and index)."""

    def read(self) -> Pair:
        """Decode the sample, or raise `DataProblem` naming the file."""


class Dataset(Protocol):
    """Named splits of samples for one task."""

    @property
    def task(self) -> Task:
        """Classes, colours, ignore label."""

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits, e.g. `train` and `val`."""

    def samples(self, split: str) -> Sequence[Sample]:
        """Return the samples of a split in a fixed order; an unknown split raises `UnknownName`."""


DATASETS: Registry[Callable[..., Dataset]] = Registry(
    "dataset"
)  # frozen dataclasses; their fields are the options

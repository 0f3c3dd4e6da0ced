"""What a dataset is: named splits of samples that read one image and its labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from segtailor.core.errors import DataProblem
from segtailor.core.registry import Registry
from segtailor.core.task import IGNORE, Task


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


def check_pair(pair: Pair, task: Task, name: str) -> None:
    """Raise `DataProblem` unless a decoded sample has the shapes, types and labels that its task promises."""
    image, labels = pair
    if image.dtype != np.uint8 or labels.dtype != np.uint8:
        raise DataProblem(f"sample '{name}' is {image.dtype} and {labels.dtype}; both must be uint8.")
    if image.ndim != 3 or image.shape[2] != 3 or image.shape[:2] != labels.shape or not labels.size:
        raise DataProblem(
            f"sample '{name}' has image {image.shape} and labels {labels.shape}; "
            "they must be (height, width, 3) and (height, width)."
        )
    strange = labels[(labels >= task.outputs) & (labels != IGNORE)]
    if strange.size:
        raise DataProblem(
            f"sample '{name}' has label {int(strange[0])}, but the task has {task.outputs} classes "
            f"(0..{task.outputs - 1}, {IGNORE} ignored). Correct the mask or the class list."
        )


DATASETS: Registry[Callable[..., Dataset]] = Registry(
    "dataset"
)  # frozen dataclasses; their fields are the options

"""What a dataset is: named splits of samples that read one image and its labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from segtailor.core.errors import DataProblem
from segtailor.core.registry import DATASETS as DATASETS  # extensions import it from here
from segtailor.core.task import Task
from segtailor.tasks import kind_of


class Pair(NamedTuple):
    """One decoded sample: an image (height, width, 3) in uint8, and what a network is to predict of it.

    What `labels` holds is the matter of the kind of task: for a segmentation labels (height, width) in uint8 with 255
    ignored, for depth metres (height, width) in float32 with 0 missing, for a pose the joints of a person.
    """

    image: NDArray[np.uint8]
    labels: NDArray[Any]


class Sample(Protocol):
    """One image with its mask, not yet read."""

    @property
    def name(self) -> str:
        """Unique within the split; used in reports and messages."""

    @property
    def fingerprint(self) -> str:
        """Changes when the content changes (path, size and time of the files, or seed and index)."""

    def read(self) -> Pair:
        """Decode the sample, or raise `DataProblem` naming the file."""


@runtime_checkable
class Placed(Protocol):
    """A sample that can say where it lies, for messages of the doctor."""

    @property
    def place(self) -> str:
        """The file, and what of it."""

    @property
    def source(self) -> Path | None:
        """The picture that this sample is cut out of, if it is: two of the same are one picture in two splits."""


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
    targets = kind_of(task).targets(task)
    if image.dtype != np.uint8 or labels.dtype != targets.dtype:
        wanted = (
            "both must be uint8" if targets.dtype == np.uint8 else f"they must be uint8 and {targets.dtype}"
        )
        raise DataProblem(f"sample '{name}' is {image.dtype} and {labels.dtype}; {wanted}.")
    shaped = image.ndim == 3 and image.shape[2] == 3 and image.size > 0
    if not shaped or labels.shape != targets.shape((image.shape[0], image.shape[1])):
        wanted = "(height, width)" if targets.shape((2, 3)) == (2, 3) else str(targets.shape((2, 3)))
        raise DataProblem(
            f"sample '{name}' has image {image.shape} and labels {labels.shape}; "
            f"they must be (height, width, 3) and {wanted}."
        )
    targets.check(labels, name=name)

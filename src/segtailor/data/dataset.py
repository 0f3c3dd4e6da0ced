"""What a dataset is: named splits of samples, each with one image and its target; and what a check of it can report."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from segtailor.core.errors import DataProblem
from segtailor.core.registry import DATASETS as DATASETS  # extensions import it from here
from segtailor.core.task import Preprocessing, Task
from segtailor.tasks import kind_of
from segtailor.tasks.bands import resized_picture

Severity: TypeAlias = Literal["error", "warning", "info"]


class Pair(NamedTuple):
    """One decoded sample: an image (height, width, 3) in uint8, and its target.

    `labels` depends on the task: for segmentation labels (height, width) in uint8 with 255 ignored, for depth metres
    (height, width) in float32 with 0 for missing, for pose the joints of a person (`tasks.pose.kind.JointRows`).
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
    """A sample that knows its file, for messages of the dataset doctor."""

    @property
    def place(self) -> str:
        """The file, and the part of it where it holds several samples."""

    @property
    def source(self) -> Path | None:
        """The picture that this sample is cut out of, if any: samples in two splits may share one picture."""


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


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing worth knowing about a dataset. Where no single file is to blame, `file` is the dataset's
    folder or list, and empty if it has none."""

    severity: Severity
    kind: str
    message: str
    fix: str
    file: str = ""


@runtime_checkable
class HasProblems(Protocol):
    """A dataset that reports problems before any sample is read."""

    def problems(self) -> Sequence[tuple[Severity, str, str, str, str]]:
        """Return (severity, kind, file, message, fix) each."""


def preprocessing_of(dataset: Dataset) -> Preprocessing:
    """Return how the images of a dataset are normalised: computed from the data where they are not RGB."""
    own = getattr(dataset, "preprocessing", None)
    return own if isinstance(own, Preprocessing) else Preprocessing()


def scaled_as(dataset: Dataset, preprocessing: Preprocessing) -> Dataset:
    """Return a dataset whose raw values are scaled as the network's were; other bands raise `DataProblem`."""
    given = getattr(dataset, "bands", None)
    wanted = None if preprocessing.ranges is None else preprocessing.channels
    if given != wanted:
        raise DataProblem(
            f"the network reads {_bands_text(wanted)}, the data holds {_bands_text(given)}; give data of the same bands"
            + (f" (option bands={wanted})." if wanted else " (leave out the option bands).")
        )
    if wanted is None:
        return dataset
    scaled = copy.copy(dataset)
    vars(scaled)["preprocessing"] = preprocessing  # in the place of the computed ones
    return scaled


def _bands_text(bands: int | None) -> str:
    return "colour images" if bands is None else f"images of {bands} bands"


def check_pair(pair: Pair, task: Task, name: str, *, channels: int = 3) -> None:
    """Raise `DataProblem` unless a decoded sample has the shapes, types and labels that its task promises."""
    image, labels = pair
    targets = kind_of(task).targets(task)
    if image.dtype != np.uint8 or labels.dtype != targets.dtype:
        wanted = (
            "both must be uint8" if targets.dtype == np.uint8 else f"they must be uint8 and {targets.dtype}"
        )
        raise DataProblem(f"sample '{name}' is {image.dtype} and {labels.dtype}; {wanted}.")
    shaped = image.ndim == 3 and image.shape[2] == channels and image.size > 0
    if not shaped or labels.shape != targets.shape((image.shape[0], image.shape[1])):
        wanted = "(height, width)" if targets.shape((2, 3)) == (2, 3) else str(targets.shape((2, 3)))
        raise DataProblem(
            f"sample '{name}' has image {image.shape} and labels {labels.shape}; "
            f"they must be (height, width, {channels}) and {wanted}."
        )
    targets.check(labels, name=name)


# Frozen dataclasses, whose fields are the options, or functions of a table of options.


def size_fingerprint(size: tuple[int, int] | None) -> str:
    """Return the part of a sample's fingerprint that stands for its size; empty where images keep their own size."""
    return "" if size is None else f"|{size[0]}x{size[1]}"


def resize_pair(pair: Pair, size: tuple[int, int] | None) -> Pair:
    """Resize an image bilinearly and its labels by the nearest pixel; without a size both stay as they are."""
    image, labels = pair
    if size is None or image.shape[:2] == size:
        return pair
    # Pillow filters before it shrinks, torch does not.
    smooth = resized_picture(image, size)
    rows, columns = (_nearest(old, new) for old, new in zip(image.shape[:2], size, strict=True))
    return Pair(smooth, np.ascontiguousarray(labels[rows[:, None], columns]))


def _nearest(old: int, new: int) -> NDArray[Any]:
    """Return the source pixel under the centre of each new one."""
    return np.minimum((2 * np.arange(new) + 1) * old // (2 * new), old - 1)

"""One pass over all samples: pixel counts, fingerprints, and a reason for each one that cannot be read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from segtailor.core.errors import DataProblem
from segtailor.core.task import IGNORE, Task
from segtailor.data.dataset import Pair, Sample
from segtailor.data.files import read_image, read_mask
from segtailor.data.labels import LabelMap
from segtailor.data.pairs import FileSample
from segtailor.tasks import Targets, kind_of

LOOKED = 200  # masks read to explain why classes cannot be told
THUMB = 16  # side of the grey thumbnail that near duplicates are compared by


@dataclass(frozen=True, kw_only=True)
class Record:
    """What the checks need to know of one readable sample; `mask` is to blame for its labels.

    `counts` has 256 numbers: pixels of each label, or of each level of what is no label; the last does not count.
    """

    name: str
    file: str
    mask: str
    size: tuple[int, int]
    digest: bytes
    thumb: NDArray[np.float32]
    counts: NDArray[np.int64]

    @property
    def ignored(self) -> float:
        """Share of pixels that do not count."""
        return float(self.counts[IGNORE] / self.counts.sum())


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Why a sample cannot be used; `ids` are the stored ids of a mask whose ids are refused."""

    kind: str
    file: str
    message: str
    ids: frozenset[int] = frozenset()
    refused: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Census:
    """All that was learned of one split; `total` counts the samples that exist, read or not."""

    split: str
    total: int
    records: tuple[Record, ...] = ()
    faults: tuple[Fault, ...] = ()
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(256, np.int64))

    @property
    def partial(self) -> bool:
        """Whether only some samples were looked at."""
        return len(self.records) + len(self.faults) < self.total

    @property
    def blank(self) -> tuple[Record, ...]:
        """Samples of whose target nothing is known."""
        return tuple(record for record in self.records if record.ignored == 1)

    @property
    def all_blank(self) -> bool:
        """Whether that is so for every sample, and there are some."""
        return bool(self.records) and len(self.blank) == len(self.records)

    def shares(self, classes: int) -> NDArray[np.float64]:
        """Share of each class among the pixels that count."""
        counted = self.counts[:classes]
        return np.asarray(counted / max(int(counted.sum()), 1))


def take_census(
    split: str,
    samples: Sequence[Sample],
    *,
    task: Task,
    count: Callable[[NDArray[Any]], NDArray[np.int64]],
    limit: int | None,
    workers: int = 2,
) -> Census:
    """Read all samples of a split, or at most `limit` spread evenly over it, and `count` their targets."""
    chosen = list(samples)
    if limit is not None and len(chosen) > limit:
        places = np.linspace(0, len(chosen) - 1, limit).round().astype(int)
        chosen = [chosen[place] for place in places]
    with ThreadPoolExecutor(workers, thread_name_prefix="census") as pool:
        outcomes = list(pool.map(partial(look, task=task, count=count), chosen))
    records = tuple(outcome for outcome in outcomes if isinstance(outcome, Record))
    return Census(
        split=split,
        total=len(samples),
        records=records,
        faults=tuple(outcome for outcome in outcomes if isinstance(outcome, Fault)),
        counts=sum((record.counts for record in records), np.zeros(256, np.int64)),
    )


def look(sample: Sample, *, task: Task, count: Callable[[NDArray[Any]], NDArray[np.int64]]) -> Record | Fault:
    """Read one sample and keep what the checks need, or say why it cannot be read."""
    file = str(sample.image) if isinstance(sample, FileSample) else sample.name
    try:
        pair = sample.read()
    except DataProblem as problem:
        return _explain(sample, problem) if isinstance(sample, FileSample) else _unreadable(file, problem)
    wrong = _malformed(pair, kind_of(task).targets(task))
    if wrong:
        return Fault(kind="size-mismatch", file=file, message=wrong)
    small = Image.fromarray(pair.image).convert("L").resize((THUMB, THUMB), Image.Resampling.BOX)
    return Record(
        name=sample.name,
        file=file,
        mask=str(sample.mask) if isinstance(sample, FileSample) else file,
        size=(pair.image.shape[0], pair.image.shape[1]),
        digest=hashlib.blake2b(
            repr(pair.image.shape).encode() + pair.image.tobytes(), digest_size=16
        ).digest(),
        thumb=np.asarray(small, np.float32).ravel(),
        counts=count(pair.labels),
    )


def explain_masks(masks: Sequence[Path], problem: DataProblem) -> list[Fault]:
    """Say what `problem` kept a dataset from telling its classes, by looking at some of its masks."""
    damaged: list[Fault] = []
    highest: dict[str, int] = {}  # id by file, 255 apart
    for mask in masks[:: max(1, len(masks) // LOOKED)]:
        try:
            raw = read_mask(mask)
        except DataProblem as damage:
            damaged.append(_unreadable(str(mask), damage))
            continue
        if raw.coloured and (raw.values != raw.values[:, :, :1]).any():
            return [*damaged, Fault(kind="colour-mask", file=str(mask), message=str(problem))]
        highest[str(mask)] = max(
            (int(value) for value in np.unique(raw.values) if value != IGNORE), default=-1
        )
    if not highest:
        return damaged or [Fault(kind="unusable", file="", message=str(problem))]
    file = max(highest, key=highest.__getitem__)
    kind = "all-ignored" if highest[file] < 0 else "id-out-of-range"
    return [*damaged, Fault(kind=kind, file=file, message=str(problem))]


def _explain(sample: FileSample, problem: DataProblem) -> Fault:
    """Find out which of the two files is to blame, and for what."""
    mask_file = str(sample.mask)
    try:
        image = read_image(sample.image)
    except DataProblem as damage:
        return _unreadable(str(sample.image), damage)
    try:
        raw = read_mask(sample.mask)
    except DataProblem as damage:
        return _unreadable(mask_file, damage)
    if image.shape[:2] != raw.values.shape[:2]:
        return Fault(kind="size-mismatch", file=mask_file, message=str(problem))
    if not isinstance(sample.labels, LabelMap):
        return Fault(kind="unusable", file=mask_file, message=str(problem))
    if raw.coloured and (raw.values != raw.values[:, :, :1]).any():
        kind = "unknown-colour" if sample.labels.colours else "colour-mask"
        return Fault(kind=kind, file=mask_file, message=str(problem))
    ids = frozenset(int(value) for value in np.unique(raw.values))
    refused = ids - set(sample.labels.ids)
    return Fault(kind="id-out-of-range", file=mask_file, message=str(problem), ids=ids, refused=refused)


def _unreadable(file: str, problem: DataProblem) -> Fault:
    return Fault(kind="unreadable", file=file, message=str(problem))


def _malformed(pair: Pair, targets: Targets) -> str:
    """Say what is wrong with the arrays of a dataset that is not ours."""
    if pair.image.ndim != 3 or pair.image.shape[2] != 3 or pair.image.dtype != np.uint8:
        return (
            f"the image is {pair.image.dtype} of shape {pair.image.shape} instead of uint8 (height, width, 3)"
        )
    wanted = targets.shape((pair.image.shape[0], pair.image.shape[1]))
    if pair.labels.dtype != targets.dtype or pair.labels.shape != wanted or not pair.labels.size:
        return (
            f"the labels are {pair.labels.dtype} of shape {pair.labels.shape}, "
            f"the image needs {targets.dtype} of shape {wanted}"
        )
    return ""

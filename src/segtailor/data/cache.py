"""The pixel cache: each split decoded once into two flat memory-mapped files, images and targets.

Its key is made of the samples' fingerprints. A finished folder appears by one atomic rename, so an interrupted build is
never used and two processes cannot disturb each other.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import math
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from segtailor.core.codec import canonical, from_json, read_json, to_json
from segtailor.core.errors import DataProblem, UserError
from segtailor.core.lock import wait_for
from segtailor.core.memory import check_memory, in_gib
from segtailor.core.task import Task
from segtailor.data.dataset import Dataset, Pair, Sample, check_pair
from segtailor.data.splits import split_samples
from segtailor.tasks import Targets, kind_of

FORMAT = 1
INDEX, IMAGES, LABELS = "index.json", "images.u8", "labels"
MAX_INDEX_BYTES = 2**30  # a million samples have an index of about 100 MB

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Index:
    """Names and sizes of the samples in the two flat files; `content` is a fingerprint of all names and pixels."""

    format: int
    names: tuple[str, ...]
    sizes: tuple[tuple[int, int], ...]
    content: str
    channels: int = 3


@dataclass(frozen=True, kw_only=True)
class Pixels:
    """The decoded samples of one split, read-only and memory-mapped.

    `sizes` is (N, 2): height and width. `fingerprint` depends on names and pixels, not on where files lie.
    """

    task: Task
    names: tuple[str, ...]
    sizes: NDArray[np.int64]
    fingerprint: str
    images: NDArray[np.uint8]  # flat: sample after sample, rows of pixels
    labels: NDArray[Any]  # flat: sample after sample, in the type of the task's targets
    samples: tuple[Sample, ...] = ()  # what was decoded, where that is known
    channels: int = 3

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """Index of the first pixel of each sample in the flat files, then the number of all pixels (N + 1)."""
        return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(self.sizes.prod(axis=1))])

    @property
    def targets(self) -> Targets:
        """How the targets of the task are stored."""
        return kind_of(self.task).targets(self.task)

    @cached_property
    def label_offsets(self) -> NDArray[np.int64]:
        """Index of the first number of each sample's target in the flat file, then the number of all (N + 1)."""
        return _label_offsets(self.targets, self.sizes.tolist())

    @property
    def uniform(self) -> bool:
        """Whether all samples have the same size; `canvas` then copies nothing."""
        return bool((self.sizes == self.sizes[0]).all())

    def pair(self, index: int) -> Pair:
        """Return one sample as views into the mapped files."""
        height, width = (int(extent) for extent in self.sizes[index])
        row = range(len(self))[index]  # negative indices count from the end
        start, stop = int(self.offsets[row]), int(self.offsets[row + 1])
        image = self.images[self.channels * start : self.channels * stop].reshape(
            height, width, self.channels
        )
        first, last = int(self.label_offsets[row]), int(self.label_offsets[row + 1])
        return Pair(image, self.labels[first:last].reshape(self.targets.shape((height, width))))

    def canvas(self) -> tuple[NDArray[np.uint8], NDArray[Any]]:
        """Return all images (N, H, W, 3) and labels, (N, H, W) where each pixel has one.

        One size: views of the mapped files. Mixed sizes: a copy padded at the bottom and right to the largest, images
        with 0 and labels with the value for missing targets; `sizes` holds the valid extents.
        """
        count, (height, width) = len(self), (int(extent) for extent in self.sizes.max(axis=0))
        shape = self.targets.shape((height, width))
        if self.uniform:
            return self.images.reshape(count, height, width, self.channels), self.labels.reshape(
                count, *shape
            )
        check_memory(
            count * (height * width * self.channels + math.prod(shape) * self.targets.dtype.itemsize),
            what=f"{count} images of different sizes, padded to {height}x{width},",
            remedy="Bring them to one size, e.g. with the dataset's option size=360x480.",
        )
        images = np.zeros((count, height, width, self.channels), dtype=np.uint8)
        labels = np.full((count, *shape), self.targets.missing, dtype=self.targets.dtype)
        for index in range(count):
            for whole, part in zip((images, labels), self.pair(index), strict=True):
                whole[index][tuple(slice(0, side) for side in part.shape)] = part
        return images, labels


def open_pixels(dataset: Dataset, split: str, root: Path, *, progress: Progress | None = None) -> Pixels:
    """Return the decoded samples of a split from the cache below `root`; decode them into it where they are missing.

    `progress(done, total)` is called while decoding. Raises `DataProblem` where a sample cannot be used or the cache
    cannot be written; an unfinished cache is removed.
    """
    samples = split_samples(dataset, split)
    if not samples:
        raise DataProblem(f"split '{split}' has no samples; check the dataset's folders or lists.")
    folder = root / _key(samples)
    pixels = _load(folder, dataset.task)
    if pixels is not None:
        return replace(pixels, samples=tuple(samples))
    try:
        root.mkdir(parents=True, exist_ok=True)
        with only_builder(folder):
            pixels = _load(folder, dataset.task)  # another process may have finished while we waited
            if pixels is None:
                _build(samples, folder, dataset.task, progress or _silent)
                pixels = _load(folder, dataset.task)
    except OSError as problem:
        raise _unwritable(root, problem) from problem
    if pixels is None:
        raise DataProblem(f"the pixel cache {folder} changed while it was opened; run again.")
    return replace(pixels, samples=tuple(samples))


def _key(samples: Sequence[Sample]) -> str:
    document = {"format": FORMAT, "samples": [[sample.name, sample.fingerprint] for sample in samples]}
    return hashlib.sha256(canonical(document).encode()).hexdigest()[:32]


def _load(folder: Path, task: Task) -> Pixels | None:
    """Map a finished cache; return None where it is missing, damaged or of another format."""
    if not folder.is_dir():
        return None
    try:
        data = read_json(folder / INDEX, what="pixel cache index", limit=MAX_INDEX_BYTES)
        index = from_json(Index, data, what="pixel cache index")
        targets = kind_of(task).targets(task)
        file = folder / labels_file(targets)
        total = sum(height * width for height, width in index.sizes)
        label_bytes = int(_label_offsets(targets, index.sizes)[-1]) * targets.dtype.itemsize
        sizes = [(folder / IMAGES).stat().st_size, file.stat().st_size]
        if index.format != FORMAT or sizes != [index.channels * total, label_bytes]:
            return None
        if len(index.names) != len(index.sizes):
            return None
        images = np.memmap(folder / IMAGES, dtype=np.uint8, mode="r").view(np.ndarray)
        labels = np.memmap(file, dtype=targets.dtype, mode="r").view(np.ndarray)
    except (UserError, OSError):
        return None
    return Pixels(
        task=task,
        names=index.names,
        sizes=np.array(index.sizes, dtype=np.int64),
        fingerprint=index.content,
        images=images,
        labels=labels,
        channels=index.channels,
    )


def labels_file(targets: Targets) -> str:
    """Return the name of the file with the targets, e.g. `labels.u8` or `labels.f32`."""
    return f"{LABELS}.{targets.dtype.kind}{8 * targets.dtype.itemsize}"


def _label_offsets(targets: Targets, sizes: Iterable[Sequence[int]]) -> NDArray[np.int64]:
    counts = [math.prod(targets.shape((height, width))) for height, width in sizes]
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)])


@contextlib.contextmanager
def only_builder(folder: Path) -> Iterator[None]:
    """Wait until no other process builds this cache. The system releases the lock of a process that ends."""
    with wait_for(folder.with_suffix(".lock")) as locked:  # a disk without locks: the rename still decides
        if locked:
            for stale in folder.parent.glob(f"{folder.name}.build-*"):
                shutil.rmtree(stale, ignore_errors=True)  # left by a killed process
        yield


def _build(samples: Sequence[Sample], folder: Path, task: Task, progress: Progress) -> None:
    """Decode into a folder beside the final one, then rename it."""
    draft = Path(tempfile.mkdtemp(prefix=f"{folder.name}.build-", dir=folder.parent))
    try:
        index = _write_pixels(samples, draft, task, progress)
        with (draft / INDEX).open("wb") as handle:
            handle.write(canonical(to_json(index)).encode())
            _settle(handle)
        if _load(folder, task) is None:
            shutil.rmtree(folder, ignore_errors=True)  # damaged
        with contextlib.suppress(FileExistsError):
            _publish(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _publish(draft: Path, folder: Path) -> None:
    try:
        draft.rename(folder)
    except OSError as problem:
        if problem.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise FileExistsError(folder) from None  # another process was first: its cache is as good


class _Decoded(NamedTuple):
    pair: Pair
    digest: bytes


def _write_pixels(samples: Sequence[Sample], draft: Path, task: Task, progress: Progress) -> Index:
    sizes: list[tuple[int, int]] = []
    content = hashlib.sha256()
    file = draft / labels_file(kind_of(task).targets(task))
    with (draft / IMAGES).open("wb") as images, file.open("wb") as labels:
        for sample, (pair, digest) in zip(samples, _decoded(samples, task), strict=True):
            if not sizes:
                _check_disk(draft, len(samples) * (pair.image.nbytes + pair.labels.nbytes))
            images.write(pair.image.data)
            labels.write(pair.labels.data)
            height, width = pair.image.shape[:2]
            sizes.append((height, width))
            content.update(canonical([sample.name, height, width]).encode() + digest)
            progress(len(sizes), len(samples))
        _settle(images)
        _settle(labels)
    names = tuple(sample.name for sample in samples)
    return Index(
        format=FORMAT,
        names=names,
        sizes=tuple(sizes),
        content=content.hexdigest()[:32],
        channels=getattr(samples[0], "channels", 3),
    )


def _check_disk(folder: Path, needed: int) -> None:
    """Raise `DataProblem` before writing where the disk is too small, estimated from the size of the first sample."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DataProblem(
            f"the pixel cache in {folder.parent} needs about {in_gib(needed)} GiB, {in_gib(free)} GiB are free there. "
            "Free some space, choose another cache folder, or use fewer or smaller images."
        )


def _decoded(samples: Sequence[Sample], task: Task) -> Iterator[_Decoded]:
    """Decode in threads and in order, at most a few samples ahead of the writer (PIL and hashing release the GIL)."""
    workers = min(8, os.cpu_count() or 1)
    waiting: deque[Future[_Decoded]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="decode")
    try:
        for sample in samples:
            waiting.append(pool.submit(_decode, sample, task))
            if len(waiting) >= 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _decode(sample: Sample, task: Task) -> _Decoded:
    pair = Pair(*(np.ascontiguousarray(part) for part in sample.read()))
    check_pair(pair, task, sample.name, channels=getattr(sample, "channels", 3))
    return _Decoded(
        pair, hashlib.sha256(pair.image.data).digest() + hashlib.sha256(pair.labels.data).digest()
    )


def _settle(handle: BinaryIO) -> None:
    handle.flush()
    os.fsync(handle.fileno())


def _unwritable(root: Path, problem: OSError) -> DataProblem:
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        return DataProblem(
            f"the disk is full: the pixel cache in {root} could not be finished and its part was removed. "
            "Free some space or choose another cache folder."
        )
    reason = problem.strerror or str(problem)
    return DataProblem(f"the pixel cache in {root} cannot be written: {reason}. Choose another cache folder.")


def _silent(done: int, total: int) -> None:
    del done, total

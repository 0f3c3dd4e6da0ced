"""Splits with large pictures: windows of them are read from their files, so that memory and cache stay small.

TIFF in strips or tiles is read in parts, masks too, and arrays of other bands. What has to be decoded whole (PNG, JPEG,
and shapes, which are drawn) is decoded once, one file at a time, into the cache, and read from there through a memory
map.
"""

from __future__ import annotations

import hashlib
import math
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from segtailor.core.atomic import new_file
from segtailor.core.codec import canonical
from segtailor.core.errors import DataProblem
from segtailor.core.memory import check_memory, in_gib
from segtailor.core.task import Task
from segtailor.data.annotations.dataset import AnnotatedSample
from segtailor.data.bands import BandWindows, spread_windows
from segtailor.data.cache import Pixels, Progress, open_pixels
from segtailor.data.dataset import Dataset, Pair, Sample
from segtailor.data.files import file_fingerprint, picture_size, read_mask
from segtailor.data.pairs import FileSample, MaskMeaning
from segtailor.data.parts import (
    LARGE_PIXELS,
    MAX_DIRECT_PART_PIXELS,
    Rows,
    TiffRows,
    decode_mask_part,
    open_rows,
    read_whole,
)
from segtailor.data.splits import split_samples
from segtailor.tasks import Targets, kind_of
from segtailor.tasks.bands import scaled_bands

LEAST_FILE_BYTES = 2**18  # a smaller file holds no large photo: its header is not looked at
DIGEST_BYTES = 2**20  # of the beginning and the end of a file, by which its content is known


Make: TypeAlias = Callable[[], NDArray[np.uint8]]


class Windows(Protocol):
    """A picture or a mask of which windows can be read."""

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""

    def read(self, top: int, bottom: int, left: int, right: int) -> NDArray[np.uint8]:
        """Return a window: RGB or scaled bands (height, width, channels), or labels (height, width)."""


Keep: TypeAlias = Callable[[str, Make], Windows]  # "image" or "mask", and what decodes it


@dataclass(frozen=True, kw_only=True)
class FileWindows:
    """A colour picture in a file that is read in parts; opened for every window, so that threads can share it."""

    path: Path
    size: tuple[int, int]

    def read(self, top: int, bottom: int, left: int, right: int) -> NDArray[np.uint8]:
        """Decode what lies under the window."""
        with open_rows(self.path) as rows:
            if rows is None or rows.size != self.size:
                raise DataProblem(f"image {self.path} changed while it was used; run again.")
            if isinstance(rows, TiffRows):
                return rows.window(top, bottom, left, right)
            return rows.read(top, bottom)[:, left:right]


@dataclass(frozen=True, kw_only=True)
class MaskWindows:
    """A mask in a TIFF file that is read in parts, as labels."""

    path: Path
    size: tuple[int, int]
    labels: MaskMeaning

    def read(self, top: int, bottom: int, left: int, right: int) -> NDArray[np.uint8]:
        """Decode what lies under the window."""
        with open_rows(self.path) as rows:
            if not isinstance(rows, TiffRows) or rows.size != self.size:
                raise DataProblem(f"mask {self.path} changed while it was used; run again.")
            return rows.window(top, bottom, left, right, self._decode)

    def _decode(self, data: bytes, name: str, valid: tuple[int, int]) -> NDArray[np.uint8]:
        labels: NDArray[np.uint8] = self.labels.apply(decode_mask_part(data, name, valid), self.path)
        return labels


@dataclass(frozen=True, kw_only=True)
class ScaledBands:
    """A picture of other bands, scaled by the ranges of the data."""

    windows: BandWindows
    ranges: tuple[tuple[float, float], ...]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.windows.size

    def read(self, top: int, bottom: int, left: int, right: int) -> NDArray[np.uint8]:
        """Read and scale the values of the window."""
        return scaled_bands(self.windows.read(top, bottom, left, right), self.ranges)


@dataclass(frozen=True, kw_only=True)
class StoredWindows:
    """Decoded pixels or labels in a memory-mapped file of the cache."""

    path: Path

    @cached_property
    def _values(self) -> NDArray[np.uint8]:
        return np.load(self.path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self._values.shape[0], self._values.shape[1]

    def read(self, top: int, bottom: int, left: int, right: int) -> NDArray[np.uint8]:
        """Copy the window."""
        return np.array(self._values[top:bottom, left:right])


@dataclass(frozen=True, kw_only=True)
class HeldWindows:
    """Decoded pixels or labels in memory."""

    values: NDArray[np.uint8]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.values.shape[0], self.values.shape[1]

    def read(self, top: int, bottom: int, left: int, right: int) -> NDArray[np.uint8]:
        """Return a view of the window."""
        return self.values[top:bottom, left:right]


@dataclass(frozen=True, kw_only=True)
class LargePixels:
    """The samples of a split with large pictures; the same facts as `Pixels`, but windows instead of whole pictures."""

    task: Task
    names: tuple[str, ...]
    sizes: NDArray[np.int64]
    fingerprint: str
    pictures: tuple[Windows, ...]
    masks: tuple[Windows, ...]
    samples: tuple[Sample, ...] = ()
    channels: int = 3

    def __len__(self) -> int:
        return len(self.names)

    @property
    def targets(self) -> Targets:
        """How the targets of the task are stored."""
        return kind_of(self.task).targets(self.task)

    def window(self, index: int, top: int, bottom: int, left: int, right: int) -> Pair:
        """Return a window of one sample."""
        place = top, bottom, left, right
        return Pair(self.pictures[index].read(*place), self.masks[index].read(*place))

    def pair(self, index: int) -> Pair:
        """Return one whole sample, if it fits in memory."""
        height, width = (int(side) for side in self.sizes[index])
        check_memory(
            height * width * (self.channels + 1),
            what=f"sample '{self.names[index]}' of {width}x{height} pixels",
            remedy="Cut it first.",
        )
        return self.window(index, 0, height, 0, width)

    def rows(self, index: int) -> Rows:
        """Return one picture as rows."""
        return WindowRows(windows=self.pictures[index])

    def glances(self) -> Iterator[list[Pair]]:
        """Yield windows spread over each sample in turn, for figures that need no more."""
        for index, (height, width) in enumerate(self.sizes.tolist()):
            yield [self.window(index, *place) for place in spread_windows((height, width))]


@dataclass(frozen=True, kw_only=True)
class WindowRows:
    """A picture of windows, as rows."""

    windows: Windows

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.windows.size

    def read(self, top: int, bottom: int) -> NDArray[np.uint8]:
        """Return windows as wide as the picture."""
        return self.windows.read(top, bottom, 0, self.windows.size[1])


def open_samples(
    dataset: Dataset, split: str, root: Path, *, progress: Progress | None = None
) -> Pixels | LargePixels:
    """Return the samples of a split for training and scoring: decoded in the cache, or as windows of large pictures."""
    if dataset.task.kind != "segmentation":
        return open_pixels(dataset, split, root, progress=progress)
    samples = split_samples(dataset, split)
    if not any(is_large(sample) for sample in samples):
        return open_pixels(dataset, split, root, progress=progress)
    pictures, masks = [], []
    for done, sample in enumerate(samples, start=1):
        picture, mask = windows_of(sample, partial(_stored, root / "large", sample))
        if picture.size != mask.size:
            raise _mismatch(sample, picture.size, mask.size)
        pictures.append(picture)
        masks.append(mask)
        if progress is not None:
            progress(done, len(samples))
    return LargePixels(
        task=dataset.task,
        names=tuple(sample.name for sample in samples),
        sizes=np.array([picture.size for picture in pictures], dtype=np.int64),
        fingerprint=_fingerprint(samples),
        pictures=tuple(pictures),
        masks=tuple(masks),
        samples=tuple(samples),
        channels=getattr(samples[0], "channels", 3),
    )


def is_large(sample: Sample) -> bool:
    """Tell whether a sample is a file of more than `LARGE_PIXELS` that is used at its own size."""
    if not isinstance(sample, FileSample | AnnotatedSample) or sample.size is not None:
        return False
    try:
        status = sample.image.stat()
    except OSError:
        return False  # its reader says why
    if status.st_size < LEAST_FILE_BYTES or not stat.S_ISREG(status.st_mode):
        return False
    ranges = getattr(sample, "ranges", None)
    bands = None if ranges is None else len(ranges)
    size = _stated_size(sample.image, bands, (status.st_size, status.st_mtime_ns))
    return size is not None and math.prod(size) > LARGE_PIXELS


@lru_cache(maxsize=2**17)
def _stated_size(path: Path, bands: int | None, version: tuple[int, int]) -> tuple[int, int] | None:
    """Return the size that the header of a picture states; it is asked for several times in a training."""
    del version
    try:
        if path.suffix.lower() == ".npy":
            shape = np.load(path, mmap_mode="r", allow_pickle=False).shape
            return (shape[0], shape[1]) if len(shape) in (2, 3) else None
        if path.suffix.lower() in (
            ".tif",
            ".tiff",
        ):  # PIL does not know those of five bands, or very large ones
            found = _direct_size(path) if bands is None else BandWindows(path, bands=bands).size
            if found is not None:
                return found
    except (DataProblem, OSError, ValueError, EOFError):
        pass  # not a file of this kind after all: the picture reader says what it is, or what is wrong
    return picture_size(path)


def windows_of(sample: Sample, keep: Keep) -> tuple[Windows, Windows]:
    """Return picture and mask of a sample; `keep` says what becomes of those that have to be decoded whole."""
    if isinstance(sample, FileSample):
        return picture_of(sample, keep), mask_of(sample, keep)
    if not isinstance(sample, AnnotatedSample):
        raise TypeError(f"{type(sample).__name__} has no files")
    picture = colour_windows(sample.image) or keep("image", lambda: read_whole(sample.image))
    return picture, keep("mask", lambda: sample.drawn(picture.size))


def picture_of(sample: FileSample, keep: Keep) -> Windows:
    """Return the picture of a sample."""
    return direct_picture(sample) or keep("image", sample.picture)


def mask_of(sample: FileSample, keep: Keep) -> Windows:
    """Return the mask of a sample, as labels."""
    return direct_mask(sample) or keep("mask", lambda: _whole_mask(sample))


def _whole_mask(sample: FileSample) -> NDArray[np.uint8]:
    """Decode a mask, and turn its values into labels a few rows at a time: that takes several times their memory."""
    raw = read_mask(sample.mask)
    height, width = raw.values.shape[0], raw.values.shape[1]
    labels = np.empty((height, width), np.uint8)
    step = max(1, MAX_DIRECT_PART_PIXELS // width)
    for top in range(0, height, step):
        rows = slice(top, top + step)
        labels[rows] = sample.labels.apply(raw._replace(values=raw.values[rows]), sample.mask)
    return labels


def direct_picture(sample: FileSample) -> Windows | None:
    """Return the picture of a sample if its file can be read in parts."""
    return (
        colour_windows(sample.image) if sample.ranges is None else band_windows(sample.image, sample.ranges)
    )


def band_windows(path: Path, ranges: Sequence[tuple[float, float]]) -> Windows | None:
    """Return a picture of other bands if its file can be read in parts."""
    if path.suffix.lower() not in (".tif", ".tiff", ".npy"):
        return None
    windows = BandWindows(path, bands=len(ranges))
    return (
        ScaledBands(windows=windows, ranges=tuple(ranges))
        if windows.part_pixels <= MAX_DIRECT_PART_PIXELS
        else None
    )


def colour_windows(path: Path) -> Windows | None:
    """Return a colour picture if its file can be read in parts."""
    size = _direct_size(path)
    return None if size is None else FileWindows(path=path, size=size)


def direct_mask(sample: FileSample) -> Windows | None:
    """Return the mask of a sample if its file can be read in parts."""
    if sample.mask.suffix.lower() not in (".tif", ".tiff"):
        return None
    size = _direct_size(sample.mask)
    return None if size is None else MaskWindows(path=sample.mask, size=size, labels=sample.labels)


def _direct_size(path: Path) -> tuple[int, int] | None:
    """Return the size of a picture whose parts are small enough to be decoded for every window; None otherwise."""
    with open_rows(path) as rows:
        if rows is None or (isinstance(rows, TiffRows) and math.prod(rows.tile) > MAX_DIRECT_PART_PIXELS):
            return None
        return rows.size


def _stored(folder: Path, sample: Sample, what: str, make: Make) -> StoredWindows:
    """Return the decoded file of a sample in the cache; it appears there whole or not at all."""
    key = hashlib.sha256(f"{what}|{sample.fingerprint}".encode(errors="surrogatepass")).hexdigest()[:32]
    path = folder / f"{key}.npy"
    if not path.is_file():
        values = np.ascontiguousarray(make())
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if values.nbytes > free:
            raise DataProblem(
                f"the pixel cache in {folder.parent} needs {in_gib(values.nbytes)} GiB for the {what} of "
                f"'{sample.name}', {in_gib(free)} GiB are free there. Free some space, choose another cache folder, or "
                "store pictures and masks as TIFF in tiles, which are read where they are."
            )
        with new_file(path, what="pixel cache") as draft, draft.open("wb") as stream:
            np.save(stream, values, allow_pickle=False)
    return StoredWindows(path=path)


def _mismatch(sample: Sample, picture: tuple[int, int], mask: tuple[int, int]) -> DataProblem:
    if isinstance(sample, FileSample):
        return sample.mismatch(picture, mask)
    return DataProblem(
        f"sample '{sample.name}' is {picture}, its labels are {mask}; make both the same size."
    )


def _fingerprint(samples: Sequence[Sample]) -> str:
    """Return a fingerprint of names and content; of content the beginnings and ends of the files and their sizes."""
    content = hashlib.sha256()
    for sample in samples:
        content.update(sample.name.encode(errors="surrogatepass"))
        if isinstance(sample, AnnotatedSample):
            content.update(sample.picture.fingerprint.rpartition("|")[2].encode())  # of the shapes
        for path in (sample.image, getattr(sample, "mask", None)):  # type: ignore[attr-defined]
            if path is None:
                continue
            file_fingerprint(path)  # a file that is gone is told as everywhere
            with path.open("rb") as stream:
                end = stream.seek(0, 2)
                stream.seek(0)
                begin = stream.read(DIGEST_BYTES)
                stream.seek(max(0, end - DIGEST_BYTES))
                content.update(canonical([end]).encode() + begin + stream.read(DIGEST_BYTES))
    return content.hexdigest()[:32]

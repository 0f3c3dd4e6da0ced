"""One pass over all samples of a split: pixel counts, fingerprints, and every reason why a sample cannot be used."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from segtailor.core.errors import DataProblem
from segtailor.core.task import IGNORE, Task
from segtailor.data.annotations.dataset import AnnotatedSample
from segtailor.data.dataset import Pair, Placed, Sample, Severity, resize_pair
from segtailor.data.files import RawMask, TooLarge, read_image, read_mask
from segtailor.data.large import HeldWindows, Windows, colour_windows, is_large, mask_of, picture_of
from segtailor.data.legend import LabelMap
from segtailor.data.pairs import FileSample
from segtailor.data.parts import read_whole
from segtailor.data.survey import masks_to_survey, strange_ids
from segtailor.tasks import Targets, kind_of
from segtailor.tasks.bands import shown_picture

T = TypeVar("T")
BAND_ROWS = 512  # of a large picture, read at once
LARGE_THUMBNAIL_SIDE_PIXELS = 512  # of the pixels that the thumbnail of a large picture is made of
ONE_AT_A_TIME = Lock()  # a large picture may have to be decoded whole
THUMBNAIL_SIDE_PIXELS = 16  # side of the grey thumbnail that near duplicates are compared by


@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    """What the checks know of a readable image, whether its mask is usable or not."""

    name: str
    file: str
    size: tuple[int, int]
    fingerprint: bytes
    thumbnail: NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class SampleFacts(ImageFacts):
    """What the checks know of a usable sample; `mask` is the file that findings about its target name.

    `counts` has 256 numbers: pixels of each label (of each level where targets are not labels); the last counts what
    is ignored.
    """

    mask: str
    counts: NDArray[np.int64]

    @property
    def ignored(self) -> float:
        """Share of pixels that do not count."""
        return float(self.counts[IGNORE] / self.counts.sum())


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One reason why a sample cannot be used; for a mask with invalid ids, all its `ids` and those `refused`.

    A warning is about a sample that can be used.
    """

    kind: str
    file: str
    message: str
    severity: Severity = "error"
    ids: frozenset[int] = frozenset()
    refused: frozenset[int] = frozenset()


class Inspection(NamedTuple):
    """Result of reading one sample: facts of its image (`SampleFacts` if it can be used), and all its faults."""

    picture: ImageFacts | None
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Census:
    """Facts about one split; `total` counts the samples that exist, `looked` those that were read.

    `pictures` are all readable images, `records` those whose sample can be used.
    """

    split: str
    total: int
    looked: int = 0
    pictures: tuple[ImageFacts, ...] = ()
    records: tuple[SampleFacts, ...] = ()
    faults: tuple[Fault, ...] = ()
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(256, np.int64))

    @property
    def partial(self) -> bool:
        """Whether only some samples were read."""
        return self.looked < self.total

    @property
    def blank(self) -> tuple[SampleFacts, ...]:
        """Samples whose target is completely ignored or missing."""
        return tuple(record for record in self.records if record.ignored == 1)

    @property
    def all_blank(self) -> bool:
        """Whether there are samples and all of them are blank."""
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
    alone: Sequence[Path] = (),
    workers: int = 2,
) -> Census:
    """Read all samples of a split, or at most `limit` spread evenly over it, and `count` their targets.

    Images without a mask (`alone`) are read too: they may be damaged, or duplicates.
    """
    chosen = _spread(samples, limit)
    with ThreadPoolExecutor(workers, thread_name_prefix="census") as pool:
        seen = list(pool.map(partial(inspect_sample, task=task, count=count), chosen))
        seen += pool.map(_inspect_image, _spread(alone, limit))
    pictures = tuple(one.picture for one in seen if one.picture is not None)
    records = tuple(picture for picture in pictures if isinstance(picture, SampleFacts))
    return Census(
        split=split,
        total=len(samples),
        looked=len(chosen),
        pictures=pictures,
        records=records,
        faults=tuple(fault for one in seen for fault in one.faults),
        counts=sum((record.counts for record in records), np.zeros(256, np.int64)),
    )


def inspect_sample(
    sample: Sample, *, task: Task, count: Callable[[NDArray[Any]], NDArray[np.int64]]
) -> Inspection:
    """Read one sample and return the facts that the checks need, with all its faults."""
    if isinstance(sample, FileSample | AnnotatedSample) and is_large(sample):
        with ONE_AT_A_TIME:
            return _inspect_large(sample, count)
    if isinstance(sample, FileSample):
        return _inspect_files(sample, count)
    if isinstance(sample, AnnotatedSample):
        return _inspect_annotated(sample, count)
    place, source = (sample.place, sample.source) if isinstance(sample, Placed) else (sample.name, None)
    try:
        pair = sample.read()
    except DataProblem as problem:
        return Inspection(None, (_unreadable(place, problem),))
    wrong = _malformed_image(pair.image)
    if wrong:
        return Inspection(None, (Fault(kind="size-mismatch", file=place, message=wrong),))
    picture = _image_facts(sample.name, place, pair.image, source=source)
    wrong = _malformed_labels(pair, kind_of(task).targets(task))
    if wrong:
        return Inspection(picture, (Fault(kind="size-mismatch", file=place, message=wrong),))
    return Inspection(_sample_facts(picture, mask=place, counts=count(pair.labels)))


def explain_masks(masks: Sequence[Path], problem: DataProblem) -> list[Fault]:
    """Return a fault for each mask that causes `problem`: the classes cannot be derived. Damaged masks are skipped."""
    ids: dict[str, frozenset[int]] = {}  # by file, without 255
    for mask in masks_to_survey(masks):
        try:
            raw = read_mask(mask)
        except DataProblem:
            continue
        if raw.coloured and (raw.values != raw.values[:, :, :1]).any():
            return [Fault(kind="colour-mask", file=str(mask), message=str(problem))]
        ids[str(mask)] = frozenset(int(value) for value in np.unique(raw.values)) - {IGNORE}
    if not ids:
        return []
    strange = strange_ids(sorted(frozenset().union(*ids.values())))
    if strange:
        return [
            Fault(kind="id-out-of-range", file=file, message=str(problem))
            for file, own in ids.items()
            if own & strange
        ]
    file = max(ids, key=lambda file: max(ids[file], default=-1))
    kind = "unusable" if ids[file] else "all-ignored"
    return [Fault(kind=kind, file=file, message=str(problem))]


def _inspect_files(sample: FileSample, count: Callable[[NDArray[Any]], NDArray[np.int64]]) -> Inspection:
    """Read image and mask independently, so that all faults are found."""
    faults: list[Fault] = []
    image = raw = labels = None
    try:
        image = sample.picture()
    except DataProblem as damage:
        faults.append(_unreadable(str(sample.image), damage))
    try:
        raw = read_mask(sample.mask)
        labels = sample.labels.apply(raw, sample.mask)
    except DataProblem as problem:
        unread = _unreadable(str(sample.mask), problem)
        faults.append(unread if raw is None else _strange_values(sample, raw, problem))
    if image is not None and raw is not None and image.shape[:2] != raw.values.shape[:2]:
        message = str(sample.mismatch(image.shape[:2], raw.values.shape[:2]))
        faults.append(Fault(kind="size-mismatch", file=str(sample.mask), message=message))
    if image is None:
        return Inspection(None, tuple(faults))
    if faults or labels is None:
        shown = resize_pair(Pair(image, image[:, :, 0]), sample.size).image
        return Inspection(_image_facts(sample.name, str(sample.image), shown), tuple(faults))
    pair = resize_pair(Pair(image, labels), sample.size)
    picture = _image_facts(sample.name, str(sample.image), pair.image)
    return Inspection(_sample_facts(picture, mask=str(sample.mask), counts=count(pair.labels)))


def _inspect_annotated(
    sample: AnnotatedSample, count: Callable[[NDArray[Any]], NDArray[np.int64]]
) -> Inspection:
    """Read the picture and draw every shape of it; faulty shapes hide neither each other nor a duplicate."""
    file = str(sample.picture.file)
    try:
        image = read_image(sample.image)
    except DataProblem as damage:
        return Inspection(None, (_unreadable(str(sample.image), damage),))
    labels, found = sample.labelling.draw(sample.picture, (image.shape[0], image.shape[1]))
    faults = tuple(
        Fault(kind=fault.kind, file=file, message=str(fault), severity=fault.severity) for fault in found
    )
    pair = resize_pair(Pair(image, labels), sample.size)
    picture = _image_facts(sample.name, str(sample.image), pair.image)
    if any(fault.severity == "error" for fault in faults):
        return Inspection(picture, faults)
    return Inspection(_sample_facts(picture, mask=file, counts=count(pair.labels)), faults)


def _inspect_large(
    sample: FileSample | AnnotatedSample, count: Callable[[NDArray[Any]], NDArray[np.int64]]
) -> Inspection:
    """Read a large picture and its mask in bands of rows; what cannot be read in parts is decoded whole."""
    faults: list[Fault] = []
    file = str(sample.mask if isinstance(sample, FileSample) else sample.picture.file)
    facts = size = counts = None
    try:
        picture = colour_windows(sample.image) if isinstance(sample, AnnotatedSample) else None
        if isinstance(sample, FileSample):
            picture = picture_of(sample, _held)
        picture = picture or HeldWindows(values=read_whole(sample.image))
        size = picture.size
        facts = _large_facts(sample.name, str(sample.image), picture)
    except DataProblem as damage:
        faults.append(_unreadable(str(sample.image), damage))
    if isinstance(sample, AnnotatedSample):
        if size is None:
            return Inspection(None, tuple(faults))
        labels, found = sample.labelling.draw(sample.picture, size)
        faults += [
            Fault(kind=fault.kind, file=file, message=str(fault), severity=fault.severity) for fault in found
        ]
        mask: Windows = HeldWindows(values=labels)
        counts = _band_counts(mask, count)
    else:
        noting = _Noting(sample)
        try:
            mask = mask_of(replace(sample, labels=noting), _held)
            counts = _band_counts(mask, count)
            if size is not None and size != mask.size:
                message = str(sample.mismatch(size, mask.size))
                faults.append(Fault(kind="size-mismatch", file=file, message=message))
        except DataProblem as problem:
            faults.append(noting.fault or _unreadable(file, problem))
    if facts is None or counts is None or any(fault.severity == "error" for fault in faults):
        return Inspection(facts, tuple(faults))
    return Inspection(_sample_facts(facts, mask=file, counts=counts), tuple(faults))


def _held(what: str, make: Callable[[], NDArray[np.uint8]]) -> HeldWindows:
    del what
    return HeldWindows(values=make())


class _Noting:
    """The meaning of a mask that remembers why values were refused."""

    def __init__(self, sample: FileSample) -> None:
        self.sample, self.fault = sample, None

    fault: Fault | None

    @property
    def fingerprint(self) -> str:
        """That of the meaning itself."""
        return self.sample.labels.fingerprint

    def apply(self, raw: RawMask, path: Path) -> NDArray[Any]:
        """Return the labels; a refusal is noted."""
        try:
            return self.sample.labels.apply(raw, path)
        except DataProblem as problem:
            self.fault = _strange_values(self.sample, raw, problem)
            raise


def _band_counts(mask: Windows, count: Callable[[NDArray[Any]], NDArray[np.int64]]) -> NDArray[np.int64]:
    height, width = mask.size
    bands = (mask.read(top, min(height, top + BAND_ROWS), 0, width) for top in range(0, height, BAND_ROWS))
    return sum((count(band) for band in bands), np.zeros(256, np.int64))


def _large_facts(name: str, file: str, picture: Windows) -> ImageFacts:
    """Return the facts of a picture band by band; the fingerprint is that of all pixels, the thumbnail of some."""
    height, width = picture.size
    step = max(1, min(height, width) // LARGE_THUMBNAIL_SIDE_PIXELS)
    content = hashlib.blake2b(digest_size=16)
    kept = []
    for top in range(0, height, BAND_ROWS):
        band = picture.read(top, min(height, top + BAND_ROWS), 0, width)
        if not top:
            content.update(repr((height, width, band.shape[2])).encode())
        content.update(np.ascontiguousarray(band).data)
        kept.append(band[-top % step :: step, ::step])
    facts = _image_facts(name, file, np.concatenate(kept))
    return replace(facts, size=(height, width), fingerprint=content.digest())


def _inspect_image(path: Path) -> Inspection:
    """Read an image that has no mask."""
    try:
        try:
            return Inspection(_image_facts(path.stem, str(path), read_image(path)))
        except TooLarge:
            windows = colour_windows(path)
            if windows is None:
                raise
            return Inspection(_large_facts(path.stem, str(path), windows))
    except DataProblem as damage:
        return Inspection(None, (_unreadable(str(path), damage),))


def _image_facts(name: str, file: str, image: NDArray[np.uint8], *, source: Path | None = None) -> ImageFacts:
    """Return the facts of an image; where it is cut out of the file `source`, the fingerprint is of that file."""
    small = (
        Image.fromarray(shown_picture(image))
        .convert("L")
        .resize((THUMBNAIL_SIDE_PIXELS, THUMBNAIL_SIDE_PIXELS), Image.Resampling.BOX)
    )
    content = repr(image.shape).encode() + image.tobytes() if source is None else source.read_bytes()
    return ImageFacts(
        name=name,
        file=file,
        size=(image.shape[0], image.shape[1]),
        fingerprint=hashlib.blake2b(content, digest_size=16).digest(),
        thumbnail=np.asarray(small, np.float32).ravel(),
    )


def _sample_facts(picture: ImageFacts, *, mask: str, counts: NDArray[np.int64]) -> SampleFacts:
    return SampleFacts(**vars(picture), mask=mask, counts=counts)


def _spread(items: Sequence[T], limit: int | None) -> list[T]:
    """Return all items, or `limit` of them spread evenly."""
    if limit is None or len(items) <= limit:
        return list(items)
    return [items[place] for place in np.linspace(0, len(items) - 1, limit).round().astype(int)]


def _strange_values(sample: FileSample, raw: RawMask, problem: DataProblem) -> Fault:
    """Return the fault of a mask whose values are refused."""
    file = str(sample.mask)
    if not isinstance(sample.labels, LabelMap):
        return Fault(kind="unusable", file=file, message=str(problem))
    if sample.labels.by_colour or (raw.coloured and (raw.values != raw.values[:, :, :1]).any()):
        kind = "unknown-colour" if sample.labels.colours else "colour-mask"
        return Fault(kind=kind, file=file, message=str(problem))
    ids = frozenset(int(value) for value in np.unique(raw.values))
    refused = ids - set(sample.labels.ids)
    return Fault(kind="id-out-of-range", file=file, message=str(problem), ids=ids, refused=refused)


def _unreadable(file: str, problem: DataProblem) -> Fault:
    return Fault(kind="unreadable", file=file, message=str(problem))


def _malformed_image(image: NDArray[Any]) -> str:
    """Return what is wrong with an image of a registered outside dataset; empty where nothing is."""
    if image.ndim == 3 and image.shape[2] == 3 and image.dtype == np.uint8 and image.size:
        return ""
    return f"the image is {image.dtype} of shape {image.shape} instead of uint8 (height, width, 3)"


def _malformed_labels(pair: Pair, targets: Targets) -> str:
    """Return what is wrong with a target of a registered outside dataset; empty where nothing is."""
    wanted = targets.shape((pair.image.shape[0], pair.image.shape[1]))
    if pair.labels.dtype == targets.dtype and pair.labels.shape == wanted and pair.labels.size:
        return ""
    return (
        f"the labels are {pair.labels.dtype} of shape {pair.labels.shape}, "
        f"the image needs {targets.dtype} of shape {wanted}"
    )

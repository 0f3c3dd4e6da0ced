"""Datasets of image files and mask files: one sample per pair of files, and how the pairs are matched by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from segtailor.core.errors import DataProblem, unknown
from segtailor.core.ranges import parse_size
from segtailor.core.task import Task
from segtailor.data.bands import read_scaled
from segtailor.data.dataset import Pair, preprocessing_of, resize_pair, size_fingerprint
from segtailor.data.files import (
    PICTURE_SUFFIXES,
    RawMask,
    file_fingerprint,
    list_pictures,
    read_mask,
)
from segtailor.data.splits import TooFewImages, by_ratio, parts_of

DEFAULT_VAL_SHARE = 0.2  # of pictures that are not divided
MAX_SIDE_PIXELS = 2**14  # that samples can be resized to
MASK_ENDINGS = ("", "_mask", "_label", "_labels", "_gt", "_seg", "_L", "_P")  # image a.jpg, mask a_mask.png


class MaskMeaning(Protocol):
    """How the numbers in mask files become a target: labels (`LabelMap`) or depths (`DepthUnit`)."""

    @property
    def fingerprint(self) -> str:
        """Changes whenever the same file gives another target."""

    def apply(self, raw: RawMask, path: Path) -> NDArray[Any]:
        """Return the target of a file; `path` is for messages."""


@dataclass(frozen=True, kw_only=True)
class FileSample:
    """One image file with its mask file."""

    name: str
    image: Path
    mask: Path
    labels: MaskMeaning
    size: tuple[int, int] | None = None
    ranges: tuple[tuple[float, float], ...] | None = None  # of the bands of an image that is not RGB

    @property
    def channels(self) -> int:
        """The number of bands of the image."""
        return 3 if self.ranges is None else len(self.ranges)

    def picture(self) -> NDArray[np.uint8]:
        """Decode the image at its own size."""
        return read_scaled(self.image, self.ranges)

    @property
    def fingerprint(self) -> str:
        """Path, size and time of both files, the meaning of the mask's values, and the requested size."""
        parts = (file_fingerprint(self.image), file_fingerprint(self.mask), self.labels.fingerprint)
        bands = "" if self.ranges is None else f"|bands {self.ranges}"
        return "|".join(parts) + size_fingerprint(self.size) + bands

    def read(self) -> Pair:
        """Decode both files, or raise `DataProblem` naming the one that is wrong."""
        image = self.picture()
        labels = self.labels.apply(read_mask(self.mask), self.mask)
        if image.shape[:2] != labels.shape:
            raise self.mismatch(image.shape[:2], labels.shape)
        return resize_pair(Pair(image, labels), self.size)

    def mismatch(self, image: tuple[int, ...], mask: tuple[int, ...]) -> DataProblem:
        """Return the error for an image and a mask of different size (height, width)."""
        return DataProblem(
            f"mask {self.mask} is {mask[1]}x{mask[0]}, its image {self.image} is {image[1]}x{image[0]} upright. "
            "Make both the same size."
        )


class PairingProblem(NamedTuple):
    """Why files cannot be matched: the file concerned, and a message that ends with what to do."""

    file: Path
    message: str


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """Files matched by name: pairs by sample name, files without a partner, and other problems (`wrong`)."""

    pairs: Mapping[str, tuple[Path, Path]]
    images_alone: tuple[Path, ...] = ()
    masks_alone: tuple[Path, ...] = ()
    wrong: tuple[PairingProblem, ...] = ()

    @property
    def names(self) -> set[str]:
        """Names that `skip` may hold: samples, and images without a mask (their file name without suffix)."""
        return {*self.pairs, *(path.stem for path in self.images_alone)}

    def without(self, names: Collection[str]) -> Pairing:
        """Return the pairing less the samples of these names."""
        if not names:
            return self
        return replace(
            self,
            pairs={name: files for name, files in self.pairs.items() if name not in names},
            images_alone=tuple(path for path in self.images_alone if path.stem not in names),
        )

    def complete(self, where: Path) -> Mapping[str, tuple[Path, Path]]:
        """Return the pairs; raise `DataProblem` where there are none, an image has no mask, or anything is wrong."""
        if self.wrong:
            raise DataProblem(self.wrong[0].message)
        if self.images_alone:
            count, total = len(self.images_alone), len(self.images_alone) + len(self.pairs)
            raise DataProblem(
                f"{count} of {total} images in {where} have no mask, first {self.images_alone[0]}. "
                "Add masks of the same name or move these images away."
            )
        if not self.pairs:
            raise DataProblem(f"{where} holds no images with masks; check the path and the folder layout.")
        return self.pairs


def join_pairings(parts: Sequence[Pairing]) -> Pairing:
    """Return several pairings as one; of a name that occurs twice the first stays."""
    pairs: dict[str, tuple[Path, Path]] = {}
    for part in parts:
        for name, files in part.pairs.items():
            pairs.setdefault(name, files)
    return Pairing(
        pairs=pairs,
        images_alone=tuple(path for part in parts for path in part.images_alone),
        masks_alone=tuple(path for part in parts for path in part.masks_alone),
        wrong=tuple(problem for part in parts for problem in part.wrong),
    )


def divide_pairing(whole: Pairing, *, where: Path, val: float, test: float, seed: int) -> dict[str, Pairing]:
    """Divide pairs by ratio; files without a partner and other problems stay with `train`, to be reported there."""
    if not whole.pairs and not whole.images_alone:
        whole.complete(where)
    try:
        table = by_ratio(tuple(whole.pairs), val=val, test=test, seed=seed)
    except TooFewImages as problem:
        return {"train": replace(whole, wrong=(*whole.wrong, PairingProblem(where, str(problem))))}
    parts = {
        split: Pairing(pairs={name: whole.pairs[name] for name in names}) for split, names in table.items()
    }
    parts["train"] = replace(whole, pairs=parts["train"].pairs)
    return parts


@dataclass(frozen=True, kw_only=True)
class FileDataset(ABC):
    """Splits of image and mask files below `path`; subclasses find the files and say what the masks mean.

    `skip` names samples to leave out, e.g. those whose files are damaged. `size` HEIGHTxWIDTH resizes all samples:
    images bilinearly, masks by the nearest pixel.
    """

    path: Path
    skip: tuple[str, ...] = ()
    size: str | None = None

    def __post_init__(self) -> None:
        check_place(self.path)
        self.wanted_size  # noqa: B018 - an invalid size is reported at once

    @property
    def wanted_size(self) -> tuple[int, int] | None:
        """Height and width that every sample is resized to; None where each keeps its own size."""
        return wanted_size(self.size)

    @property
    @abstractmethod
    def task(self) -> Task:
        """Classes, colours, ignore label."""

    @property
    @abstractmethod
    def labels(self) -> MaskMeaning:
        """What the values in mask files mean."""

    @abstractmethod
    def find(self) -> Mapping[str, Pairing]:
        """Find the files of every split, or raise `DataProblem` saying which layout was expected."""

    @cached_property
    def pairings(self) -> Mapping[str, Pairing]:
        """The files of every split, also those without a partner, less the samples to skip."""
        by_split, left_out = self.find(), set(self.skip)
        known = {name for pairing in by_split.values() for name in pairing.names}
        for name in self.skip:
            if name not in known:
                raise unknown("sample to skip", name, known)
        return {split: pairing.without(left_out) for split, pairing in by_split.items()}

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(self.pairings)

    def samples(self, split: str) -> tuple[FileSample, ...]:
        """Return the samples of a split, of several joined by `+`, or of `trainval`."""
        parts = [self.pairings[part].complete(self.path) for part in parts_of(split, self.splits)]
        return tuple(sample for pairs in parts for sample in self.of(pairs))

    def of(self, pairs: Mapping[str, tuple[Path, Path]]) -> list[FileSample]:
        """Return one sample per pair of files."""
        labels, size = self.labels, self.wanted_size
        ranges = preprocessing_of(self).ranges
        return [
            FileSample(name=name, image=image, mask=mask, labels=labels, size=size, ranges=ranges)
            for name, (image, mask) in pairs.items()
        ]


def check_place(path: Path) -> None:
    """Raise `DataProblem` unless a dataset's folder or file exists."""
    try:
        path.stat()
    except FileNotFoundError:
        raise DataProblem(f"dataset folder {path} does not exist; check the path.") from None
    except (OSError, ValueError) as problem:
        raise DataProblem(f"dataset folder {str(path)!r:.200} cannot be opened: {problem}.") from None


def wanted_size(text: str | None) -> tuple[int, int] | None:
    """Return the height and width that the option `size` asks for; nothing without it."""
    return None if text is None else parse_size(text, most=MAX_SIDE_PIXELS, error=DataProblem)


def pair_folders(
    images: Path,
    masks: Path,
    *,
    endings: Iterable[str] = MASK_ENDINGS,
    image_ending: str = "",
    prefix: str = "",
) -> Pairing:
    """Match the pictures below two folders by relative path without suffix.

    A mask's name may end in one of `endings`; `image_ending` is removed from image names. Sample names start with
    `prefix`.
    """
    pictures, same_names = _by_stem(images, image_ending, PICTURE_SUFFIXES | {".npy"})
    candidates, same_mask_names = _by_stem(masks, "")
    tails = tuple(endings)
    pairs: dict[str, tuple[Path, Path]] = {}
    alone: list[Path] = []
    used: set[str] = set()
    for stem, image in pictures.items():
        match = next((stem + tail for tail in tails if stem + tail in candidates), None)
        if match is None:
            alone.append(image)
        else:
            pairs[prefix + stem] = (image, candidates[match])
            used.add(match)
    unused = tuple(path for stem, path in candidates.items() if stem not in used)
    wrong = (*same_names, *same_mask_names)
    return Pairing(pairs=pairs, images_alone=tuple(alone), masks_alone=unused, wrong=wrong)


def _by_stem(
    folder: Path, ending: str, suffixes: Collection[str] = PICTURE_SUFFIXES
) -> tuple[dict[str, Path], list[PairingProblem]]:
    """Return pictures by name without suffix, and a problem for each picture whose name is already used."""
    table: dict[str, Path] = {}
    wrong: list[PairingProblem] = []
    for path in list_pictures(folder, suffixes):
        stem = path.relative_to(folder).with_suffix("").as_posix()
        if ending:
            if not stem.endswith(ending):
                continue
            stem = stem.removesuffix(ending)
        if stem in table:
            message = (
                f"{table[stem]} and {path} share one name, so their masks cannot be told apart. Rename one."
            )
            wrong.append(PairingProblem(path, message))
        else:
            table[stem] = path
    return table, wrong

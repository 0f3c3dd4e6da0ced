"""Datasets of annotation files: shapes per picture, drawn into labels whenever a sample is read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segtailor.core.errors import DataProblem, unknown
from segtailor.core.task import IGNORE, Task
from segtailor.data.annotations.reading import AnnotationProblem, AnnotationReading, Unlabelled
from segtailor.data.annotations.shapes import AnnotatedPicture, Labelling
from segtailor.data.dataset import Pair, Severity, resize_pair, size_fingerprint
from segtailor.data.files import read_image
from segtailor.data.pairs import DEFAULT_VAL_SHARE, check_place, wanted_size
from segtailor.data.splits import TooFewImages, by_ratio, parts_of

BACKGROUND = "background"  # the class of unlabelled pixels, where the files have none
BACKGROUND_NAMES = frozenset({"background", "_background_", "__background__"})
IGNORED_NAMES = frozenset({"__ignore__", "_ignore_"})  # as Labelme's list of labels calls it
SPLIT_ORDER = ("train", "val", "test")


@dataclass(frozen=True, kw_only=True)
class AnnotatedSample:
    """One picture with its shapes, not yet drawn."""

    name: str
    picture: AnnotatedPicture
    labelling: Labelling
    size: tuple[int, int] | None = None

    @property
    def image(self) -> Path:
        """The file of the picture."""
        return self.picture.image

    @property
    def fingerprint(self) -> str:
        """The picture, its annotations, what classes mean, and the requested size."""
        return f"{self.picture.fingerprint}|{self.labelling.fingerprint}{size_fingerprint(self.size)}"

    def read(self) -> Pair:
        """Decode the picture and draw its shapes, or raise `DataProblem` naming the file that is wrong."""
        image = read_image(self.image)
        return resize_pair(Pair(image, self.drawn((image.shape[0], image.shape[1]))), self.size)

    def drawn(self, size: tuple[int, int]) -> NDArray[np.uint8]:
        """Draw the shapes at the size of the picture; a faulty one raises `DataProblem`."""
        labels, faults = self.labelling.draw(self.picture, size)
        for fault in faults:
            if fault.severity == "error":
                raise fault
        return labels


@dataclass(frozen=True, kw_only=True)
class AnnotatedDataset(ABC):
    """Pictures with annotation files below `path`, or one annotation file; subclasses read a format.

    `classes` chooses classes and their order; shapes of others are not drawn. `ignore` names classes whose pixels do
    not count. `unlabelled` says what pixels without annotation are: `background`, a class of their own (the first one),
    or `ignore`. `skip` names samples to leave out; `size` HEIGHTxWIDTH resizes all samples. Where the files do not
    divide pictures, `val` and `test` are drawn by `seed`.
    """

    path: Path
    skip: tuple[str, ...] = ()
    size: str | None = None
    classes: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    unlabelled: Unlabelled | None = None
    val: float | None = None
    test: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_place(self.path)
        wanted_size(self.size)

    @abstractmethod
    def read(self) -> AnnotationReading:
        """Read all annotation files, or raise `DataProblem` saying which layout was expected."""

    @property
    def root(self) -> Path:
        """The folder that the names of samples start from."""
        return self.path if self.path.is_dir() else self.path.parent

    @cached_property
    def reading(self) -> AnnotationReading:
        """The content of the annotation files."""
        found = self.read()
        if not found.pictures and not found.problems:
            raise DataProblem(f"{self.path} holds no annotated pictures; check the path and the format.")
        return found.finish()

    @cached_property
    def task(self) -> Task:
        """The classes of the files, the background first where there is one."""
        return Task(classes=self._names)

    @cached_property
    def labelling(self) -> Labelling:
        """The label of each class."""
        labels = {name: label for label, name in enumerate(self._names)}
        ignored = {name: IGNORE for name in (*self.reading.classes, *IGNORED_NAMES) if self._is_ignored(name)}
        return Labelling(
            labels={**labels, **ignored}, unlabelled=0 if self._unlabelled == "background" else IGNORE
        )

    @cached_property
    def parts(self) -> Mapping[str, Mapping[str, AnnotatedPicture]]:
        """The pictures of each split by name, less those to skip."""
        named = self._named
        for name in self.skip:
            if name not in named and name not in self._problem_names:
                raise unknown("sample to skip", name, {*named, *self._problem_names})
        kept = {name: picture for name, picture in named.items() if name not in self.skip}
        found = {
            split: {name: picture for name, picture in kept.items() if picture.split == split}
            for split in ("", *SPLIT_ORDER)
        }
        return self._divided({split: pictures for split, pictures in found.items() if pictures})

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(self.parts)

    def samples(self, split: str) -> tuple[AnnotatedSample, ...]:
        """Return the samples of a split, of several joined by `+`, or of `trainval`; an error of the files raises."""
        self._refuse_errors(self._problems)
        return self.usable(split)

    def usable(self, split: str) -> tuple[AnnotatedSample, ...]:
        """Return the samples of a split whose annotations could be read, whatever is wrong with others."""
        size = wanted_size(self.size)
        return tuple(
            AnnotatedSample(name=name, picture=picture, labelling=self.labelling, size=size)
            for part in parts_of(split, self.splits)
            for name, picture in self.parts[part].items()
        )

    def problems(self) -> Sequence[tuple[Severity, str, str, str, str]]:
        """Report everything that is wrong with the annotation files, less what is about pictures to skip."""
        return [problem[:5] for problem in self._problems]

    @property
    def _problems(self) -> list[AnnotationProblem]:
        self.parts  # noqa: B018 - naming and dividing pictures finds problems too
        return [
            problem
            for problem in self.reading.problems
            if problem.image is None or self._name(problem.image) not in self.skip
        ]

    @staticmethod
    def _refuse_errors(problems: Sequence[AnnotationProblem]) -> None:
        """Raise the first error, with the number of the others."""
        errors = [problem for problem in problems if problem.severity == "error"]
        if errors:
            more = f" ({len(errors) - 1} more; see 'segtailor data check')" if len(errors) > 1 else ""
            end = "" if errors[0].message.endswith("?") and not more else "."
            raise DataProblem(f"{errors[0].message}{more}{end} {errors[0].fix}")

    @cached_property
    def _problem_names(self) -> set[str]:
        return {self._name(problem.image) for problem in self.reading.problems if problem.image is not None}

    @property
    def _unlabelled(self) -> Unlabelled:
        return self.unlabelled or self.reading.unlabelled

    def _is_ignored(self, name: str) -> bool:
        return name in self.ignore or (name in IGNORED_NAMES and name not in self.classes)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        known = self.reading.classes
        for name in (*self.classes, *self.ignore):
            if name not in known and name not in BACKGROUND_NAMES:
                raise unknown("class", name, known)
        if not known:
            self._refuse_errors(self.reading.problems)
            raise DataProblem(f"{self.path} declares no classes and holds no shapes; check the format.")
        names = [name for name in self.classes or known if not self._is_ignored(name)]
        if self._unlabelled == "ignore":
            return tuple(names)
        own = next((name for name in names if name.lower() in BACKGROUND_NAMES), BACKGROUND)
        return (own, *(name for name in names if name != own))

    @cached_property
    def _named(self) -> dict[str, AnnotatedPicture]:
        """Pictures by name; where two files differ in their suffix alone, the second keeps it in its name."""
        named: dict[str, AnnotatedPicture] = {}
        for picture in self.reading.pictures:
            name = self._name(picture.image)
            other = named.get(name)
            if other is not None and other.image != picture.image:
                name = f"{name}{picture.image.suffix}"
                other = named.get(name)
            if other is not None:
                self.reading.report(
                    "listing",
                    picture.file,
                    f"{picture.file} annotates {picture.image}, which {other.file} annotates too",
                    "Keep one of the two.",
                    image=picture.image,
                )
                continue
            named[name] = picture
        return named

    def _name(self, image: Path) -> str:
        root = self.reading.root
        place = image.relative_to(root) if image.is_relative_to(root) else Path(image.name)
        return place.with_suffix("").as_posix()

    def _divided(
        self, found: dict[str, dict[str, AnnotatedPicture]]
    ) -> dict[str, dict[str, AnnotatedPicture]]:
        """Divide by ratio where the files do not divide, or where a split is asked for that they lack."""
        for split, share in (("val", self.val), ("test", self.test)):
            if split in found and share is not None:
                raise DataProblem(f"{self.path} has its own split '{split}'; leave out {split}={share:g}.")
        loose = found.pop("", {})
        if not found:
            return self._by_ratio(loose, val=DEFAULT_VAL_SHARE if self.val is None else self.val)
        if loose:
            found["train"] = {**found.get("train", {}), **loose}
        if "train" in found and (self.val or self.test):
            found.update(self._by_ratio(found["train"], val=self.val or 0.0))
        return {split: found[split] for split in SPLIT_ORDER if split in found}

    def _by_ratio(
        self, pictures: dict[str, AnnotatedPicture], *, val: float
    ) -> dict[str, dict[str, AnnotatedPicture]]:
        if not pictures:
            return {"train": {}}
        try:
            table = by_ratio(tuple(pictures), val=val, test=self.test or 0.0, seed=self.seed)
        except TooFewImages as problem:
            self.reading.report("listing", self.path, str(problem).rstrip("."), "Add images, or give val=0.")
            return {"train": pictures}
        return {split: {name: pictures[name] for name in names} for split, names in table.items()}

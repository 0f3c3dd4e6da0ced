"""Pose datasets: people from annotation files or drawn ones, cut out of their pictures at the size of the network.

Annotations that cannot be used are left out and reported to the dataset doctor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from segtailor.core.errors import DataProblem, unknown
from segtailor.core.task import Task
from segtailor.data.dataset import Finding, Pair, Severity
from segtailor.data.files import file_fingerprint, read_image
from segtailor.data.splits import parts_of
from segtailor.tasks.pose.crops import Crop, Variation, crop_of, cut_person
from segtailor.tasks.pose.persons import Person, PersonView, without_outside
from segtailor.tasks.pose.pictures import AllPeople
from segtailor.tasks.pose.skeletons import Skeleton


class PersonSample(Protocol):
    """One person, picture not yet read."""

    @property
    def name(self) -> str:
        """Unique within the split."""

    @property
    def fingerprint(self) -> str:
        """Changes when the picture or the annotation does."""

    @property
    def source(self) -> Path | None:
        """The file of the picture, if it is one."""

    def read(self) -> PersonView:
        """Decode the picture, or raise `DataProblem` naming the file."""


class PersonSource(Protocol):
    """Named splits of annotated people with one skeleton."""

    @property
    def skeleton(self) -> Skeleton:
        """Names and order of the joints."""

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits, e.g. `train` and `val`."""

    def samples(self, split: str) -> Sequence[PersonSample]:
        """Return the people of a split in a fixed order; an unknown split raises `UnknownName`."""

    def problems(self) -> Sequence[tuple[Severity, str, str, str, str]]:
        """Return (severity, kind, file, message, fix) of every doubtful annotation, for the dataset doctor."""


@dataclass(frozen=True, kw_only=True)
class PersonCrop:
    """One person at the size of the network, not yet cut out."""

    sample: PersonSample
    skeleton: Skeleton
    size: tuple[int, int]
    everyone: AllPeople | None = field(
        default=None, compare=False, repr=False
    )  # the people of the split, where known

    @property
    def name(self) -> str:
        """Unique within the split."""
        return self.sample.name

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the person, and the size of the crop."""
        return f"{self.sample.fingerprint}|pose {self.size[0]}x{self.size[1]}"

    @property
    def place(self) -> str:
        """The file of the picture, or the name of a drawn picture."""
        return self.name if self.source is None else str(self.source)

    @property
    def source(self) -> Path | None:
        """The picture that the person is cut out of."""
        return self.sample.source

    @property
    def person(self) -> Person:
        """The person or the box that is shown; only where it comes from a file."""
        if not isinstance(self.sample, FilePerson):
            raise DataProblem(f"person {self.name} is drawn; it is known when the picture is read.")
        return self.sample.person

    @property
    def crop(self) -> Crop:
        """The map from the picture to the crop."""
        return crop_of(self.person.box, self.size)

    def read(self) -> Pair:
        """Cut the person out; joints and measures are in pixels of the crop."""
        return self.recut(self.original(), Variation())

    def original(self) -> PersonView:
        """Decode the picture."""
        return self.sample.read()

    def recut(self, view: PersonView, variation: Variation) -> Pair:
        """Cut the person out of the decoded picture, which is scaled, turned and mirrored around the person."""
        image, joints, crop = cut_person(view, self.skeleton, self.size, variation=variation)
        zoom = float(np.sqrt(abs(np.linalg.det(crop.matrix[:, :2]))))
        head, area = view.person.head_size or 0.0, view.person.area or 0.0
        measures = np.array([[head * zoom, area * zoom**2, 0.0]], np.float32)
        return Pair(np.ascontiguousarray(image), np.concatenate([joints, measures]).astype(np.float32))


@dataclass(frozen=True, kw_only=True)
class PersonCrops(ABC):
    """A dataset of crops of `height` x `width` pixels."""

    height: int = 256
    width: int = 192

    def __post_init__(self) -> None:
        if min(self.height, self.width) < 8 or self.height % 4 or self.width % 4:
            raise DataProblem(
                f"people of {self.height}x{self.width} cannot be cut; give multiples of 4, such as 256x192."
            )

    @property
    @abstractmethod
    def source(self) -> PersonSource:
        """The annotated people."""

    @property
    def task(self) -> Task:
        """The joints of the skeleton."""
        skeleton = self.source.skeleton
        return Task(
            classes=skeleton.joints, kind="pose", skeleton=skeleton.name, crop=(self.height, self.width)
        )

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return self.source.splits

    def samples(self, split: str) -> Sequence[PersonCrop]:
        """Return the people of a split, of several joined by `+`, or of `trainval`."""
        size, parts = (self.height, self.width), parts_of(split, self.splits)
        chosen = [sample for part in parts for sample in self.source.samples(part)]
        everyone = self._everyone(parts, boxes=len(chosen))
        return tuple(
            PersonCrop(sample=sample, skeleton=self.source.skeleton, size=size, everyone=everyone)
            for sample in chosen
        )

    def _everyone(self, parts: Sequence[str], *, boxes: int) -> AllPeople | None:
        """Return everyone in these splits where the people come from files and are scored picture by picture."""
        source = self.source
        if not isinstance(source, PersonFiles) or not source.skeleton.sigmas:
            return None
        people = tuple(person for part in parts for person in source.people(part))
        return AllPeople(people=people, boxes=boxes, detected=any(source.detects(part) for part in parts))

    def problems(self) -> Sequence[tuple[Severity, str, str, str, str]]:
        """Return what is wrong with the annotations."""
        return self.source.problems()


@dataclass(frozen=True, kw_only=True)
class PersonFiles(ABC):
    """People of one dataset, one annotation file per split; a file is read when its split is first used."""

    path: Path

    @property
    @abstractmethod
    def skeleton(self) -> Skeleton:
        """Names and order of the joints."""

    @abstractmethod
    def find(self) -> Mapping[str, AnnotationFile]:
        """Return the files of every split, or raise `DataProblem` saying what is expected."""

    @abstractmethod
    def read(self, source: AnnotationFile) -> Annotations:
        """Read one annotation file; one that cannot be used at all raises `DataProblem`."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that have a file."""
        return tuple(self._sources)

    def samples(self, split: str) -> Sequence[FilePerson]:
        """Return the people with a labelled joint, in the order of the file; groups are left out."""
        return tuple(
            FilePerson(person=one) for one in self.people(split) if one.labelled.any() and not one.crowd
        )

    def detects(self, split: str) -> bool:
        """Tell whether the boxes of a split come from a detector."""
        del split
        return False

    def people(self, split: str) -> Sequence[Person]:
        """Return all people, also groups and people without joints, which OKS must know but does not count."""
        return self._annotations(split).people

    def problems(self) -> Sequence[tuple[Severity, str, str, str, str]]:
        """Return (severity, kind, file, message, fix) of every doubtful annotation, for the dataset doctor."""
        findings = [found for split in self.splits for found in self._findings(split)]
        return tuple((f.severity, f.kind, f.file, f.message, f.fix) for f in findings)

    def _findings(self, split: str) -> Sequence[Finding]:
        """Return the problems of a split's file; nothing where the file cannot be used at all."""
        try:
            return self._annotations(split).findings
        except DataProblem:
            return ()  # `samples` raises this error

    def _annotations(self, split: str) -> Annotations:
        if split not in self._sources:
            raise unknown("split", split, self._sources)
        if split not in self._known:
            self._known[split] = self.read(self._sources[split])
        return self._known[split]

    @cached_property
    def _sources(self) -> Mapping[str, AnnotationFile]:
        return self.find()

    @cached_property
    def _known(self) -> dict[str, Annotations]:
        return {}


@dataclass(frozen=True, kw_only=True)
class FilePerson:
    """A person whose picture is a file."""

    person: Person

    @property
    def name(self) -> str:
        """Unique within the split."""
        return self.person.id

    @property
    def fingerprint(self) -> str:
        """Path, size and time of the picture, and the annotation itself."""
        return (
            f"{file_fingerprint(Path(self.person.picture))}:{self.person.box}:{self.person.joints.tolist()}"
        )

    @property
    def source(self) -> Path:
        """The file of the picture."""
        return Path(self.person.picture)

    def read(self) -> PersonView:
        """Decode the picture; joints outside of it become unlabelled."""
        image = read_image(Path(self.person.picture))
        return PersonView(image, without_outside(self.person, (image.shape[0], image.shape[1])))


class Annotations(NamedTuple):
    """Content of an annotation file: the usable people, and the problems found."""

    people: tuple[Person, ...]
    findings: tuple[Finding, ...]
    pictures: Mapping[str, str] = {}  # file by the id that boxes of a detector name, where there are ids


class AnnotationFile(NamedTuple):
    """An annotation file and the folder of its pictures."""

    file: Path
    pictures: Path


def collect(
    rows: Sequence[Any],
    person: Callable[[Any, int], tuple[Person, tuple[float, float] | None]],
    *,
    file: Path,
    skeleton: Skeleton,
) -> Annotations:
    """Turn every row into a person with `person(row, index)`, which also returns the size of the picture if known."""
    people: dict[str, Person] = {}
    findings: list[Finding] = []
    for index, row in enumerate(rows):
        try:
            found, size = person(row, index)
            if found.id in people:
                raise DataProblem(f"the id {found.id} stands for two people. Give each one of its own.")
        except DataProblem as problem:
            findings.append(_left_out(file, problem))
            continue
        people[found.id] = without_outside(found, size or (np.inf, np.inf))
        if people[found.id] is not found:
            removed = np.flatnonzero(found.labelled & ~people[found.id].labelled)
            findings.append(_outside(file, found, [skeleton.joints[joint] for joint in removed]))
    if not people:
        raise DataProblem(f"{file} holds no usable person: {findings[0].message}. {findings[0].fix}")
    return Annotations(tuple(people.values()), tuple(findings))


def _left_out(file: Path, problem: DataProblem) -> Finding:
    message, _, fix = str(problem).rpartition(". ")
    return Finding(severity="error", kind="annotation", file=str(file), message=message, fix=fix)


def _outside(file: Path, person: Person, names: Sequence[str]) -> Finding:
    return Finding(
        severity="warning",
        kind="joints outside",
        file=str(file),
        message=f"person {person.id}: {', '.join(names)} outside the picture; not counted",
        fix="Set their visibility to 0, or correct their place.",
    )

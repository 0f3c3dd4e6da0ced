"""People cut out of their pictures: what a pose network is trained and scored on."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from segtailor.core.errors import DataProblem
from segtailor.core.registry import DATASETS
from segtailor.core.task import Task
from segtailor.data.checks.findings import Severity
from segtailor.data.coco_keypoints import CocoKeypoints
from segtailor.data.dataset import Pair
from segtailor.data.mpii import Mpii
from segtailor.data.people import DEFAULT_IMAGES, People
from segtailor.data.person_files import PersonSample, PersonSource
from segtailor.data.sizes import parse_size
from segtailor.data.splits import parts_of
from segtailor.tasks.pose.crops import cut_person
from segtailor.tasks.pose.skeletons import Skeleton


@dataclass(frozen=True, kw_only=True)
class PersonCrop:
    """One person at the network's size, not yet cut."""

    sample: PersonSample
    skeleton: Skeleton
    size: tuple[int, int]

    @property
    def name(self) -> str:
        """Unique within the split."""
        return self.sample.name

    @property
    def fingerprint(self) -> str:
        """What the person depends on, and the size."""
        return f"{self.sample.fingerprint}|pose {self.size[0]}x{self.size[1]}"

    @property
    def place(self) -> str:
        """The picture's file, or the name of one that is drawn."""
        return self.name if self.source is None else str(self.source)

    @property
    def source(self) -> Path | None:
        """The picture that the person is cut out of."""
        return self.sample.source

    def read(self) -> Pair:
        """Cut the person out; joints and measures are in pixels of the crop."""
        view = self.sample.read()
        image, joints, crop = cut_person(view, self.skeleton, self.size)
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
        size = (self.height, self.width)
        return tuple(
            PersonCrop(sample=sample, skeleton=self.source.skeleton, size=size)
            for part in parts_of(split, self.splits)
            for sample in self.source.samples(part)
        )

    def problems(self) -> Sequence[tuple[Severity, str, str, str, str]]:
        """Return what is wrong with the annotations."""
        return self.source.problems()


@DATASETS.register("mpii")
@dataclass(frozen=True, kw_only=True)
class MpiiCrops(PersonCrops):
    """MPII Human Pose, 16 joints: `annot/train.json`, `annot/valid.json` and `images/`; crops of height x width."""

    path: Path
    width: int = 256

    @cached_property
    def source(self) -> Mpii:
        """The annotation files."""
        return Mpii(path=self.path)


@DATASETS.register("coco-keypoints")
@dataclass(frozen=True, kw_only=True)
class CocoCrops(PersonCrops):
    """COCO person keypoints, 17 joints: `annotations/person_keypoints_*.json` and the pictures."""

    path: Path

    @cached_property
    def source(self) -> CocoKeypoints:
        """The annotation files."""
        return CocoKeypoints(path=self.path)


@dataclass(frozen=True, kw_only=True)
class RenderedCrops(PersonCrops):
    """Rendered stick people."""

    height: int = 128
    width: int = 96
    people: People = field(default_factory=People)

    @property
    def source(self) -> People:
        """Who is drawn."""
        return self.people


def people_from_options(options: Mapping[str, str]) -> RenderedCrops:
    """Stick people with 16 joints: `size=128x128` of pictures, `crop=128x96`, `seed=0`, `train=400`, `val=100`."""
    counts = {key: _whole(key, text) for key, text in options.items() if key not in ("size", "crop", "seed")}
    height, width = parse_size(options.get("crop", "128x96"), what="synthetic-pose: crop")
    people = People(
        images={**dict(DEFAULT_IMAGES), **counts},
        size=parse_size(options.get("size", "128x128"), what="synthetic-pose: size"),
        seed=_whole("seed", options.get("seed", "0")),
    )
    return RenderedCrops(height=height, width=width, people=people)


def _whole(name: str, text: str) -> int:
    if name not in ("train", "val", "test", "seed") or not re.fullmatch(r"\d{1,9}", text):
        raise DataProblem(
            f"synthetic-pose: {name}={text} is no option; known: size=HxW, crop=HxW, seed=N, train=N, val=N, test=N."
        )
    return int(text)


DATASETS.add("synthetic-pose", people_from_options)

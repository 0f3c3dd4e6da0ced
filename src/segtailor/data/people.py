"""The pose dataset that needs no files: one stick person per picture, the same ones for the same seed."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from segtailor.core.errors import DataProblem, unknown
from segtailor.data.checks.findings import Severity
from segtailor.data.stick_figure import LIMB, draw_figure
from segtailor.tasks.pose.persons import Person, PersonView, outside
from segtailor.tasks.pose.skeletons import MPII, Skeleton

VERSION = 1  # raise whenever something else is drawn, so that caches notice
SMALLEST, LARGEST = 32, 2048  # pixels per side
DEFAULT_IMAGES = (("train", 400), ("val", 100))


@dataclass(frozen=True, kw_only=True)
class RenderedPerson:
    """One picture, not yet drawn."""

    seed: int
    split: str
    index: int
    size: tuple[int, int]

    @property
    def name(self) -> str:
        """Unique within the split."""
        return f"{self.split}_{self.index:06d}"

    @property
    def fingerprint(self) -> str:
        """Everything that decides the pixels."""
        height, width = self.size
        return f"people/{VERSION}/{self.seed}/{self.split}/{self.index}/{height}x{width}"

    @property
    def source(self) -> None:
        """No file."""

    def read(self) -> PersonView:
        """Draw the picture; joints beyond its border are unlabelled, the box ends at the border."""
        rng = np.random.default_rng((self.seed, zlib.crc32(self.split.encode()), self.index))
        figure = draw_figure(self.size, rng)
        joints = np.column_stack((figure.joints, np.full(len(figure.joints), 2))).astype(np.float32)
        joints[outside(joints, self.size)] = 0
        height, width = self.size
        around = LIMB * figure.height / 2
        left, top = np.clip(figure.joints.min(0) - around, 0, (width - 8, height - 8))
        right, bottom = np.clip(figure.joints.max(0) + around, (left + 8, top + 8), (width, height))
        person = Person(
            id=self.name,
            picture=self.name,
            box=(float(left), float(top), float(right - left), float(bottom - top)),
            joints=joints,
            head_size=figure.head_size,
            area=figure.area,
        )
        return PersonView(figure.image, person)


@dataclass(frozen=True, kw_only=True)
class People:
    """Rendered stick people: how many per split, how large the pictures (height, width), from which seed."""

    images: Mapping[str, int] = field(default_factory=lambda: dict(DEFAULT_IMAGES))
    size: tuple[int, int] = (128, 128)
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.images or min(self.images.values()) < 1:
            raise DataProblem(
                f"people: images={dict(self.images)} is too few; a split needs at least 1 image."
            )
        if not all(SMALLEST <= side <= LARGEST for side in self.size) or self.seed < 0:
            raise DataProblem(
                f"people: size={self.size[0]}x{self.size[1]} with seed={self.seed} cannot be drawn; give "
                f"height x width, each {SMALLEST} to {LARGEST}, and a seed of 0 or more."
            )

    @property
    def skeleton(self) -> Skeleton:
        """MPII's sixteen joints."""
        return MPII

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(self.images)

    def samples(self, split: str) -> Sequence[RenderedPerson]:
        """Return the people of a split."""
        if split not in self.images:
            raise unknown("split of people", split, self.images)
        return tuple(
            RenderedPerson(seed=self.seed, split=split, index=index, size=self.size)
            for index in range(self.images[split])
        )

    def problems(self) -> Sequence[tuple[Severity, str, str, str, str]]:
        """Return nothing: drawn people are as they should be."""
        return ()

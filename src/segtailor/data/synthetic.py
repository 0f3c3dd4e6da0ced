"""The dataset that needs no files: street scenes rendered on demand, the same ones for the same seed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from segtailor.core.errors import DataProblem, unknown
from segtailor.core.task import Task
from segtailor.data.dataset import Pair
from segtailor.data.scene import CLASSES, PALETTE, Scene, render

VERSION = 2  # raise whenever the renderer draws something else, so that caches notice
SMALLEST, LARGEST = 16, 8192  # pixels per side
NAME = re.compile(r"[A-Za-z][\w-]*")
TASK = Task(classes=CLASSES, palette=PALETTE)
DEFAULT_IMAGES = (("train", 400), ("val", 100))


@dataclass(frozen=True, kw_only=True)
class SyntheticSample:
    """One scene, not yet rendered."""

    seed: int
    split: str
    index: int
    size: tuple[int, int]

    @property
    def name(self) -> str:
        """Unique within the split."""
        return f"{self.split}_{self.index:06d}"

    @property
    def stamp(self) -> str:
        """Everything that decides the pixels."""
        height, width = self.size
        return f"synthetic/{VERSION}/{self.seed}/{self.split}/{self.index}/{height}x{width}"

    def scene(self) -> Scene:
        """Render image, labels and depth."""
        return render(self.seed, self.index, self.size, split=self.split)

    def read(self) -> Pair:
        """Render image and labels."""
        scene = self.scene()
        return Pair(scene.image, scene.labels)


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """Rendered street scenes: how many per split, how large (height, width), from which seed."""

    images: Mapping[str, int] = field(default_factory=lambda: dict(DEFAULT_IMAGES))
    size: tuple[int, int] = (128, 256)
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.images:
            raise DataProblem("synthetic: no splits were asked for; give at least one, e.g. train=400.")
        for split, count in self.images.items():
            if not NAME.fullmatch(split):
                raise DataProblem(
                    f"synthetic: '{split}' is no name for a split; use letters, digits, - and _."
                )
            if count < 1:
                raise DataProblem(f"synthetic: {split}={count} is too few; a split needs at least 1 image.")
        if not all(SMALLEST <= side <= LARGEST for side in self.size):
            height, width = self.size
            raise DataProblem(
                f"synthetic: size={height}x{width} cannot be rendered; give height x width, "
                f"each {SMALLEST} to {LARGEST}."
            )
        if self.seed < 0:
            raise DataProblem(f"synthetic: seed={self.seed} is negative; use 0 or more.")

    @property
    def task(self) -> Task:
        """Classes and colours of the street scenes; nothing is ignored."""
        return TASK

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(self.images)

    def samples(self, split: str) -> Sequence[SyntheticSample]:
        """Return the scenes of a split."""
        if split not in self.images:
            raise unknown("split of synthetic", split, self.images)
        return tuple(
            SyntheticSample(seed=self.seed, split=split, index=index, size=self.size)
            for index in range(self.images[split])
        )


def from_options(options: Mapping[str, str]) -> Synthetic:
    """Build the dataset from text: `size=128x256`, `seed=0`, images per split (`train=400`, `val=100`)."""
    counts = {name: _whole(name, text) for name, text in options.items() if name not in ("size", "seed")}
    return Synthetic(
        images={**dict(DEFAULT_IMAGES), **counts},
        size=_size(options["size"]) if "size" in options else (128, 256),
        seed=_whole("seed", options.get("seed", "0")),
    )


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,6})[x×](\d{1,6})", text.strip())
    if match is None:
        raise DataProblem(f"synthetic: size={text} is not a size; write height x width, e.g. size=128x256.")
    return int(match[1]), int(match[2])


def _whole(name: str, text: str) -> int:
    if name not in ("train", "val", "test", "seed"):
        raise DataProblem(
            f"synthetic: unknown option '{name}'; known: size=HxW, seed=N, train=N, val=N, test=N "
            "(number of images per split)."
        )
    try:
        return int(text)
    except ValueError:
        raise DataProblem(f"synthetic: {name}={text} is not a whole number; write e.g. {name}=100.") from None

"""The synthetic dataset: street scenes rendered on demand, the same for the same seed.

The renderer returns classes and depth, so a scene is a sample for segmentation or for depth.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from segtailor.core.errors import DataProblem, unknown
from segtailor.core.ranges import check_seed, format_integer, parse_size
from segtailor.core.task import Kind, Task
from segtailor.data.dataset import Pair
from segtailor.data.scene import CLASSES, PALETTE, Scene, render

VERSION = 2  # raise it whenever the rendering changes: it is part of the fingerprint of cached samples
MIN_SIDE_PIXELS, MAX_SIDE_PIXELS = 16, 8192
MAX_IMAGES = 1_000_000  # of all splits together: they are listed before the first is rendered
NAME = re.compile(r"[A-Za-z][\w-]*")
MAX_DEPTH_METRES = 80.0  # pixels beyond, e.g. of the sky, have no depth
TASK = Task(classes=CLASSES, palette=PALETTE)
DEPTH_TASK = Task(classes=("depth",), kind="depth", span=(0.5, MAX_DEPTH_METRES))
DEFAULT_IMAGES = (("train", 400), ("val", 100))


@dataclass(frozen=True, kw_only=True)
class SyntheticSample:
    """One scene, not yet rendered."""

    seed: int
    split: str
    index: int
    size: tuple[int, int]
    kind: Kind = "segmentation"

    @property
    def name(self) -> str:
        """Unique within the split."""
        return f"{self.split}_{self.index:06d}"

    @property
    def fingerprint(self) -> str:
        """Everything that the pixels depend on."""
        height, width = self.size
        scene = f"synthetic/{VERSION}/{self.seed}/{self.split}/{self.index}/{height}x{width}"
        return scene + SCENE_TASKS[self.kind].fingerprint

    def scene(self) -> Scene:
        """Render image, labels and depth."""
        return render(self.seed, self.index, self.size, split=self.split)

    def read(self) -> Pair:
        """Render image and target."""
        scene = self.scene()
        return Pair(scene.image, SCENE_TASKS[self.kind].target(scene))


def _depth(scene: Scene) -> NDArray[np.float32]:
    """Return the depth of a scene, 0 for sky and everything beyond `MAX_DEPTH_METRES`."""
    return np.where(scene.depth <= MAX_DEPTH_METRES, scene.depth, np.float32(0))


class SceneTask(NamedTuple):
    """One use of a scene: the task, the function that returns its target, and the end of its fingerprint."""

    task: Task
    target: Callable[[Scene], NDArray[Any]]
    fingerprint: str


SCENE_TASKS: Mapping[Kind, SceneTask] = {
    "segmentation": SceneTask(TASK, lambda scene: scene.labels, ""),
    "depth": SceneTask(DEPTH_TASK, _depth, "/depth"),
}


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """Rendered street scenes: the number of images per split, their size (height, width), and the seed."""

    images: Mapping[str, int] = field(default_factory=lambda: dict(DEFAULT_IMAGES))
    size: tuple[int, int] = (128, 256)
    seed: int = 0
    kind: Kind = "segmentation"

    def __post_init__(self) -> None:
        if not self.images:
            raise DataProblem("synthetic: no splits were asked for; give at least one, e.g. train=400.")
        for split, count in self.images.items():
            if not NAME.fullmatch(split):
                raise DataProblem(
                    f"synthetic: '{split}' is not a name for a split; use letters, digits, - and _."
                )
            if count < 1:
                raise DataProblem(
                    f"synthetic: {split}={format_integer(count)} is too few; a split needs at least 1 image."
                )
        if sum(self.images.values()) > MAX_IMAGES:
            requested = ", ".join(f"{split}={format_integer(count)}" for split, count in self.images.items())
            raise DataProblem(
                f"synthetic: {requested} is too many; at most {MAX_IMAGES:,} images are rendered. Give fewer."
            )
        if not all(MIN_SIDE_PIXELS <= side <= MAX_SIDE_PIXELS for side in self.size):
            height, width = self.size
            raise DataProblem(
                f"synthetic: size={height}x{width} cannot be rendered; give height x width, "
                f"each {MIN_SIDE_PIXELS} to {MAX_SIDE_PIXELS}."
            )
        check_seed(self.seed, name="synthetic: seed", error=DataProblem)

    @property
    def task(self) -> Task:
        """Classes and colours of the street scenes (no pixel is ignored), or their depth."""
        return SCENE_TASKS[self.kind].task

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(self.images)

    def samples(self, split: str) -> Sequence[SyntheticSample]:
        """Return the scenes of a split."""
        if split not in self.images:
            raise unknown("split of synthetic", split, self.images)
        return tuple(
            SyntheticSample(seed=self.seed, split=split, index=index, size=self.size, kind=self.kind)
            for index in range(self.images[split])
        )


def from_options(options: Mapping[str, str], *, kind: Kind = "segmentation") -> Synthetic:
    """Build the dataset from text: `size=128x256`, `seed=0`, images per split (`train=400`, `val=100`)."""
    counts = {name: _whole(name, text) for name, text in options.items() if name not in ("size", "seed")}
    return Synthetic(
        images={**dict(DEFAULT_IMAGES), **counts},
        size=parse_size(options["size"], name="synthetic: size", error=DataProblem)
        if "size" in options
        else (128, 256),
        seed=_whole("seed", options.get("seed", "0")),
        kind=kind,
    )


def depth_from_options(options: Mapping[str, str]) -> Synthetic:
    """The depth of the street scenes in metres, with the same options."""
    return from_options(options, kind="depth")


def _whole(name: str, text: str) -> int:
    if name not in ("train", "val", "test", "seed"):
        raise DataProblem(
            f"synthetic: unknown option '{name}'; known: size=HxW, seed=N, train=N, val=N, test=N "
            "(number of images per split)."
        )
    try:
        return int(text[:100])
    except ValueError:
        raise DataProblem(f"synthetic: {name}={text} is not a whole number; write e.g. {name}=100.") from None

"""What a network predicts: the kind of task, the names and colours of its outputs, and what does not count."""

from __future__ import annotations

import colorsys
import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from segtailor.core.errors import DataProblem

IGNORE = 255  # the label that never counts, in memory and in caches, whatever the files use
Colour: TypeAlias = tuple[int, int, int]
Kind: TypeAlias = Literal["segmentation", "depth", "pose"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """Names and colours of the outputs: the classes of a segmentation, the joints of a pose, or the one of depth.

    What else a kind needs to know: `ignore` is the label of a segmentation that never counts, `span` the nearest and
    farthest depth in metres that count, `skeleton` the name of that of a pose and `crop` the size (height, width) at
    which a person is seen. Behaviour is in `segtailor.tasks`.
    """

    classes: tuple[str, ...]
    palette: tuple[Colour, ...] = ()
    ignore: int = IGNORE
    kind: Kind = "segmentation"
    span: tuple[float, float] | None = None
    skeleton: str | None = None
    crop: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.classes) <= IGNORE:
            raise DataProblem(
                f"a task needs 1 to {IGNORE} classes, got {len(self.classes)}; check the class list."
            )
        self._check_names()
        if not self.palette:
            object.__setattr__(self, "palette", default_palette(len(self.classes)))
        if not all(0 <= value <= 255 for colour in self.palette for value in colour):
            raise DataProblem("a colour of the palette is out of range; every value is 0 to 255.")
        if len(self.palette) != len(self.classes):
            raise DataProblem(
                f"the palette has {len(self.palette)} colours for {len(self.classes)} classes; give one per class."
            )
        if self.span is not None and not 0 < self.span[0] < self.span[1] < math.inf:
            raise DataProblem(
                f"a depth from {self.span[0]:g} to {self.span[1]:g} m is no range; give 0 < nearest < farthest."
            )

    def _check_names(self) -> None:
        for name in self.classes:
            if not name.strip():
                raise DataProblem(f"the class name {name[:60]!a} cannot be seen; give every class a name.")
            if any("\ud800" <= sign <= "\udfff" for sign in name):  # neither files nor pages can hold one
                raise DataProblem(f"the class name '{name}' holds half a character; write it in UTF-8.")
        if len(set(self.classes)) != len(self.classes):
            raise DataProblem("two classes have the same name; rename one of them.")

    @property
    def outputs(self) -> int:
        """Channels that a network for this task predicts."""
        return len(self.classes)


def default_palette(count: int) -> tuple[Colour, ...]:
    """Return `count` well separated colours, the same ones every time."""
    golden = 0.61803398875  # steps of the golden ratio spread hues evenly for any count
    colours = []
    for index in range(count):
        red, green, blue = colorsys.hsv_to_rgb(
            index * golden % 1, 0.55 + 0.35 * (index % 2), 0.95 - 0.25 * (index % 3 == 2)
        )
        colours.append((round(255 * red), round(255 * green), round(255 * blue)))
    return tuple(colours)


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """From uint8 RGB to what the network reads: `(x / 255 - mean) / std` per channel."""

    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        finite = all(map(math.isfinite, (*self.mean, *self.std)))
        if not finite or min(self.std) <= 0:
            raise DataProblem(
                f"preprocessing: mean {self.mean} and std {self.std} cannot be used; all must be finite, and std above "
                "zero."
            )

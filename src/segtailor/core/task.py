"""What a network predicts: the task with names and colours of its outputs, and plain facts about each kind of task.

The facts are the figures of an evaluation, the one that searches maximise, and the outputs of exported files. They are
here so that reports and `--help` need no torch; behaviour is in `segtailor.tasks`.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from segtailor.core.errors import DataProblem, Unsupported

MAX_BANDS = 64  # of a picture
IGNORE = 255  # the label that is never scored, in memory and in caches, whatever the files use
Colour: TypeAlias = tuple[int, int, int]
Kind: TypeAlias = Literal["segmentation", "depth", "pose"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """Names and colours of the outputs: classes of a segmentation, joints of a pose, or the single output of depth.

    Some fields belong to one kind: `ignore` is the label of a segmentation that is never scored, `span` the nearest and
    farthest depth in metres that are scored, `skeleton` the name of the skeleton of a pose, and `crop` the size
    (height, width) of an image of one person.
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
            if any("\ud800" <= sign <= "\udfff" for sign in name):  # cannot be written to files or pages
                raise DataProblem(f"the class name '{name}' holds half a character; write it in UTF-8.")
        if len(set(self.classes)) != len(self.classes):
            raise DataProblem("two classes have the same name; rename one of them.")

    @property
    def outputs(self) -> int:
        """The number of channels that a network for this task predicts."""
        return len(self.classes)


def default_palette(count: int) -> tuple[Colour, ...]:
    """Return `count` well separated colours, always the same."""
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
    """From uint8 pixels to what the network reads: `(x / 255 - mean) / std` per channel.

    Pictures are RGB, unless there are `ranges`: then they have that many bands, and a range holds the raw values that
    become 0 and 255.
    """

    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    ranges: tuple[tuple[float, float], ...] | None = None

    def __post_init__(self) -> None:
        bands = 3 if self.ranges is None else len(self.ranges)
        if not len(self.mean) == len(self.std) == bands or not 1 <= bands <= MAX_BANDS:
            raise DataProblem(
                f"preprocessing: {len(self.mean)} means and {len(self.std)} deviations for {bands} bands; give one of "
                f"each per band, for 1 to {MAX_BANDS} bands."
            )
        for low, high in self.ranges or ():
            if not -math.inf < low < high < math.inf:
                raise DataProblem(
                    f"preprocessing: {low:g} to {high:g} is no range of a band; give low < high."
                )
        finite = all(map(math.isfinite, (*self.mean, *self.std)))
        if not finite or min(self.std) <= 0:
            raise DataProblem(
                f"preprocessing: mean {self.mean} and std {self.std} cannot be used; all must be finite, and std above "
                "zero."
            )

    @property
    def channels(self) -> int:
        """The number of bands of a picture."""
        return len(self.mean)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure of an evaluation: its name in JSON, its label in texts, and its unit (shares are written in %)."""

    name: str
    label: str
    unit: str = "%"

    def told(self, value: float | None) -> str:
        """Write a value with its unit."""
        if value is None:
            return "-"
        if self.unit == "%":
            return f"{100 * value:.1f} %"
        return f"{value:.3f} {self.unit}".rstrip()


@dataclass(frozen=True, kw_only=True)
class KindFacts:
    """Facts about a kind of task that need no torch.

    The first figure is the headline: from 0 to 1, higher is better; searches maximise it. `finished` is the name of the
    output of an exported file, besides `logits`, that needs no further processing; it has `rank` dimensions.
    `described` is the name of the summary of a single prediction. `labelled` says that outputs are classes of pixels,
    each with its own colour.
    """

    summary: str
    figures: tuple[Figure, ...]
    finished: str
    rank: int
    described: str
    labelled: bool = False

    @property
    def headline(self) -> Figure:
        """The figure by which networks are compared."""
        return self.figures[0]


KIND_FACTS: Mapping[Kind, KindFacts] = {
    "segmentation": KindFacts(
        summary="One class per pixel.",
        figures=(
            Figure(name="miou", label="mIoU"),
            Figure(name="fwiou", label="fwIoU"),
            Figure(name="mean_accuracy", label="mean accuracy"),
            Figure(name="pixel_accuracy", label="pixel accuracy"),
        ),
        finished="labels",
        rank=3,
        described="shares",
        labelled=True,
    ),
    "depth": KindFacts(
        summary="The distance of each pixel, in metres.",
        figures=(
            Figure(name="delta1", label="delta < 1.25"),
            Figure(name="delta2", label="delta < 1.25²"),
            Figure(name="delta3", label="delta < 1.25³"),
            Figure(name="rmse", label="RMSE", unit="m"),
            Figure(name="rmse_log", label="RMSE of logarithms", unit=""),
            Figure(name="abs_rel", label="abs rel", unit=""),
            Figure(name="sqr_rel", label="sqr rel", unit="m"),
        ),
        finished="depth",
        rank=3,
        described="depth",
    ),
    "pose": KindFacts(
        summary="The joints of one person per crop.",
        figures=(
            Figure(name="pose_quality", label="quality"),
            Figure(name="pckh", label="PCKh@0.5"),
            Figure(name="pckh_fine", label="PCKh@0.1"),
            Figure(name="ap", label="AP (OKS)"),
            Figure(name="ar", label="AR (OKS)"),
        ),
        finished="heatmaps",
        rank=4,
        described="joints",
    ),
}


def needs_classes(task: Task, what: str) -> None:
    """Raise `Unsupported` if the pixels of a task have no classes; `what` names what cannot be done."""
    if not KIND_FACTS[task.kind].labelled:
        raise Unsupported(
            f"{what} works by the classes of pixels, and this task is {task.kind}; train, search, score, export and "
            "predict it without."
        )

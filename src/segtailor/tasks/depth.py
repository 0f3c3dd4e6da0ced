"""Monocular depth as a kind of task: one output channel that is linear in metres."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from segtailor.core.codec import Json
from segtailor.core.errors import DataProblem, UserError
from segtailor.core.task import Colour, Task
from segtailor.tasks.enlarging import enlarge
from segtailor.tasks.kind import TASK_KINDS, Forward, Head, Look, View, marked
from segtailor.tasks.loss_settings import LossSettings, same_size
from segtailor.tasks.targets import Geometry, nearest, turned

DEFAULT_SPAN_METRES = (0.1, 100.0)  # metres that count where a task does not say
SAME_DEPTH_SHARE = 0.01  # predictions that differ by at most this share are the same but for rounding
FULL_ERROR_SHARE = 0.5  # share of the true depth at which an error is drawn in full
MILLIMETRES_PER_METRE = 1000
TINY = 1e-12  # keeps 0 / 0 at 0
DELTA_FACTOR = 1.25  # predictions within this factor of the truth are good, within its square fair, ...
MIN_DEPTH_METRES = (
    1e-3  # metres: what a prediction that is not positive counts as where its logarithm is needed
)
FIGURE_NAMES = ("delta1", "delta2", "delta3", "rmse", "rmse_log", "abs_rel", "sqr_rel")
GAP = (0, 0, 0)
# Anchors from far to near, equally spaced: dark violet, red, orange, pale yellow. Lightness grows all the way, so that
# the order can be read without colour vision.
ANCHORS = (
    (24, 15, 62),
    (87, 16, 110),
    (148, 38, 103),
    (203, 65, 73),
    (240, 112, 32),
    (251, 173, 40),
    (252, 242, 170),
)
BAR, EDGE, TICK = 12, 4, 4  # pixels: width of the bar, space around it, length of a tick
TEXT = (235, 235, 235)
BACK = (24, 24, 28)
MIN_BAR_ROWS = 40  # rows that a bar with labels needs


@dataclass(frozen=True, kw_only=True)
class DepthMaps:
    """Depth is resampled by the nearest value: between a near and a far surface, or beside a gap, there is nothing.

    A picture that is enlarged by s looks as if its camera stood s times as near: depths are divided by s, unless the
    augmentation says otherwise.
    """

    missing: ClassVar[float] = 0.0
    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.float32)

    def shape(self, size: tuple[int, int]) -> tuple[int, ...]:
        """One depth per pixel."""
        return size

    def check(self, target: NDArray[Any], *, name: str) -> None:
        """Refuse depths that no camera measures; gaps are 0."""
        if not np.isfinite(target).all() or (target < 0).any():
            raise DataProblem(
                f"sample '{name}' has depths that are negative or not numbers; write 0 where nothing was measured."
            )

    def crop(self, targets: Tensor, geometry: Geometry) -> Tensor:
        """Take the nearest depth, 0 outside of the source, and divide by the scale."""
        found = nearest(targets, geometry)
        found.mul_(geometry.rows_inside[:, :, None]).mul_(geometry.columns_inside[:, None])
        if geometry.rescale:
            found.mul_(geometry.lines[:, 1].abs()[:, None, None])
        return found

    def turn(self, targets: Tensor, angles: Tensor, size: tuple[int, int]) -> Tensor:
        """Take the nearest depth; what comes from outside is a gap."""
        del size
        return turned(targets[:, None], angles, mode="nearest")[:, 0]

    def resized(self, target: NDArray[Any], size: tuple[int, int], to: tuple[int, int]) -> NDArray[Any]:
        """Take the nearest depth as it is."""
        if size == to:
            return target
        return np.array(Image.fromarray(target).resize(to[::-1], Image.Resampling.NEAREST), dtype=np.float32)


class InverseHuber:
    """The loss of a training batch of depth maps."""

    def __init__(self, settings: LossSettings, *, align_corners: bool = False) -> None:
        settings.only("depth", "knee")
        self.settings = settings
        self.align_corners = align_corners

    @property
    def global_normaliser(self) -> bool:
        """Whether parts of a batch can share the normaliser: while no depth map is shrunk."""
        return self.settings.resize == "logits"

    def normaliser(self, depths: Tensor) -> Tensor:
        """Return the number of pixels with a depth."""
        return (depths > 0).sum(dtype=torch.float32)

    def __call__(self, outputs: Mapping[str, Tensor], depths: Tensor, *, normaliser: Tensor) -> Tensor:
        """Return the weighted sum over outputs of the mean over pixels."""
        terms = []
        for name, logits in outputs.items():
            sized, target = same_size(logits, depths, self.settings.resize, align_corners=self.align_corners)
            own = normaliser if self.global_normaliser else self.normaliser(target)
            total = inverse_huber(sized[:, 0].float(), target, knee=self.settings.knee)
            terms.append(self.settings.coefficient(name) * total / own.clamp(min=TINY))
        return torch.stack(terms).sum()


def inverse_huber(predicted: Tensor, depths: Tensor, *, knee: float) -> Tensor:
    """Return the sum of the loss over all pixels with a depth; nothing known gives 0."""
    error = torch.where(depths > 0, (predicted - depths).abs(), 0.0)
    limit = (knee * error.detach().max()).clamp(min=TINY)
    return torch.where(error <= limit, error, (error**2 + limit**2) / (2 * limit)).sum()


@dataclass(frozen=True, kw_only=True)
class DepthScores:
    """Figures of one evaluation; `delta1` to `delta3` are shares of pixels within a factor 1.25, 1.25², 1.25³."""

    delta1: float
    delta2: float
    delta3: float
    rmse: float
    rmse_log: float
    abs_rel: float
    sqr_rel: float
    images: int = 0

    @property
    def quality(self) -> float:
        """The headline figure: the share of pixels within a factor of 1.25."""
        return self.delta1

    @property
    def reward(self) -> float:
        """What staged searches climb: the headline figure."""
        return self.delta1

    def figures(self) -> dict[str, float]:
        """Return all figures by name."""
        return {name: getattr(self, name) for name in FIGURE_NAMES}

    def document(self, classes: Sequence[str]) -> dict[str, Json]:
        """Return the JSON form."""
        del classes
        return {**self.figures(), "images": self.images}


class DepthMeter:
    """Adds up the figures of images."""

    def __init__(self, span: tuple[float, float], device: torch.device | None = None) -> None:
        self.span = span
        self.images = 0
        # One sum per figure, and the number of images that have a depth.
        self.sums = torch.zeros(len(FIGURE_NAMES) + 1, dtype=torch.float64, device=device)

    def add(self, predicted: Tensor, depths: Tensor) -> None:
        """Count a batch of depth maps (images, height, width) in metres."""
        if predicted.shape != depths.shape:
            raise ValueError(
                f"predicted depths are {tuple(predicted.shape)}, true ones {tuple(depths.shape)}"
            )
        for found, truth in zip(predicted, depths, strict=True):
            known = (truth >= self.span[0]) & (truth <= self.span[1])
            self.sums += _figures(found[known].double(), truth[known].double())
        self.images += len(depths)

    def merge(self, add_up: Callable[[Tensor], Tensor]) -> None:
        """Add the sums of all processes."""
        self.sums = add_up(self.sums)

    def scores(self, *, without: Sequence[int] = ()) -> DepthScores:
        """Return the averages over images; all are 0 where no image has a depth."""
        del without
        *sums, count = self.sums.tolist()
        means = (value / max(count, 1) for value in sums)
        return DepthScores(**dict(zip(FIGURE_NAMES, means, strict=True)), images=self.images)


def _figures(found: Tensor, truth: Tensor) -> Tensor:
    """Return the figures of one image in the order of `NAMES`, and 1; an image without depths gives zeros."""
    if not truth.numel():
        return truth.new_zeros(len(FIGURE_NAMES) + 1)
    error = found - truth
    log = found.clamp(min=MIN_DEPTH_METRES).log() - truth.log()
    factor = log.abs()
    rows = [
        (factor < power * torch.log(truth.new_tensor(DELTA_FACTOR))).double().mean() for power in (1, 2, 3)
    ]
    rows += [(error**2).mean().sqrt(), (log**2).mean().sqrt()]
    rows += [(error.abs() / truth).mean(), (error**2 / truth).mean(), truth.new_ones(())]
    return torch.stack(rows)


class Metres(Head):
    """Enlarge the only channel and keep it within the span; depth is (N, height, width) in metres."""

    def __init__(self, span: tuple[float, float], *, align_corners: bool) -> None:
        super().__init__()
        self.span, self.align_corners = span, align_corners

    def forward(self, logits: Tensor, size: tuple[int, int]) -> Tensor:
        """Return the depth at a size."""
        return self.small(enlarge(logits, size, align_corners=self.align_corners))

    def small(self, logits: Tensor) -> Tensor:
        """Return the depth at the stride of the logits."""
        return logits[:, 0].clamp(*self.span)


class Depth:
    """The distance of each pixel, in metres."""

    dtype = torch.float32
    scores_type = DepthScores

    def targets(self, task: Task) -> DepthMaps:
        """Metres, 0 for gaps."""
        del task
        return DepthMaps()

    def criterion(
        self, settings: LossSettings, *, task: Task, device: torch.device, align_corners: bool = False,
        seen: Callable[[], NDArray[Any]] | None = None,
    ) -> InverseHuber:  # fmt: skip
        """Inverse Huber."""
        del task, device, seen
        return InverseHuber(settings, align_corners=align_corners)

    def meter(self, task: Task, device: torch.device) -> DepthMeter:
        """Averages over images, of the depths within the task's span."""
        return DepthMeter(task.span or DEFAULT_SPAN_METRES, device)

    def decode(self, logits: Tensor, size: tuple[int, int], *, task: Task, align_corners: bool) -> Tensor:
        """Return metres (n, height, width), within the task's span."""
        near, far = task.span or DEFAULT_SPAN_METRES
        return enlarge(logits, size, align_corners=align_corners)[:, 0].clamp(near, far)

    def predict(self, forward: Forward, images: Tensor, *, task: Task, align_corners: bool) -> Tensor:
        """Predict whole images."""
        size = (images.shape[2], images.shape[3])
        return self.decode(forward(images), size, task=task, align_corners=align_corners)

    def view(self, pixels: NDArray[np.uint8], task: Task) -> View:
        """Whole pictures as they are."""
        del task
        return View(pixels, lambda found: found)

    def head(self, task: Task, *, align_corners: bool) -> Metres:
        """Metres at image size."""
        return Metres(task.span or DEFAULT_SPAN_METRES, align_corners=align_corners)

    def finish(self, output: NDArray[Any], size: tuple[int, int], *, task: Task) -> NDArray[np.float32]:
        """Return metres (height, width), resized smoothly where the file has another size."""
        del task
        if not np.isfinite(output).all():
            raise UserError("gave depths that are not numbers.")
        found = output.astype(np.float32)
        return self.resized(found, (found.shape[0], found.shape[1]), size)

    def resized(self, found: NDArray[Any], size: tuple[int, int], to: tuple[int, int]) -> NDArray[Any]:
        """Resize smoothly: a prediction has no gaps."""
        if size == to:
            return found
        return np.array(Image.fromarray(found).resize(to[::-1], Image.Resampling.BILINEAR), dtype=np.float32)

    def corner(self, found: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
        """Leave out what lies beside."""
        return found[: size[0], : size[1]]

    def agree(self, one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
        """Tell where depths differ by at most one percent."""
        return np.asarray(np.abs(one - other) <= SAME_DEPTH_SHARE * np.maximum(np.abs(one), np.abs(other)))

    def paint(self, image: NDArray[np.uint8], found: NDArray[Any], task: Task, look: Look) -> Image.Image:
        """Draw depth in colours with their scale, colours over the picture, or 16-bit millimetres (`ids`)."""
        del task
        if look.form == "ids":
            return Image.fromarray(
                np.clip(np.rint(found * MILLIMETRES_PER_METRE), 0, 65535).astype(np.uint16)
            )
        span = shown_span(found)
        painted = colourise_depth(found, span)
        if look.form == "overlay":
            painted = (image * (1 - look.opacity) + painted * look.opacity + 0.5).astype(np.uint8)
        return with_scale(painted, span)

    def mark(
        self, image: NDArray[np.uint8], target: NDArray[Any], found: NDArray[Any], task: Task
    ) -> Image.Image:
        """Mark depths the stronger, the larger their share of the true one is that they are off."""
        del task
        known = target > 0
        off = np.abs(found - target) / np.where(known, target, 1.0)
        return marked(image, np.where(known, off / FULL_ERROR_SHARE, 0.0))

    def legend(self, targets: Sequence[NDArray[Any]], task: Task) -> list[tuple[Colour, str]]:
        """Return the range of the depths, and how much was not measured."""
        del task
        known = np.concatenate([depth[depth > 0].ravel() for depth in targets])
        near, far = (float(value) for value in np.percentile(known, (0, 100))) if known.size else (0.0, 0.0)
        gaps = 1 - known.size / max(1, sum(depth.size for depth in targets))
        light, dark = (tuple(int(part) for part in depth_colours()[level]) for level in (255, 0))
        return [
            ((light[0], light[1], light[2]), f"nearest {near:.2f} m"),
            ((dark[0], dark[1], dark[2]), f"farthest {far:.2f} m"),
            (GAP, f"not measured {gaps:.1%}"),
        ]

    def describe(self, found: NDArray[Any], task: Task) -> dict[str, float]:
        """Return nearest, median and farthest depth in metres."""
        del task
        near, middle, far = (float(value) for value in np.percentile(found, (0, 50, 100)))
        return {"nearest_m": near, "median_m": middle, "farthest_m": far}


TASK_KINDS.add("depth", Depth())


@cache
def depth_colours() -> NDArray[np.uint8]:
    """Return 256 colours from far to near."""
    places = np.linspace(0, 1, len(ANCHORS))
    steps = np.linspace(0, 1, 256)
    columns = [np.interp(steps, places, [anchor[part] for anchor in ANCHORS]) for part in range(3)]
    return np.stack(columns, axis=1).round().astype(np.uint8)


def shown_span(depth: NDArray[np.float32]) -> tuple[float, float]:
    """Return the nearest and farthest depth that a picture shows: its 2nd and 98th percentile, a little apart."""
    known = depth[np.isfinite(depth) & (depth > 0)]
    if not known.size:
        return 0.5, 1.0
    near, far = (float(value) for value in np.percentile(known, (2, 98)))
    return near, max(far, near * 1.05)


def colourise_depth(depth: NDArray[np.float32], span: tuple[float, float]) -> NDArray[np.uint8]:
    """Return depth (height, width) as RGB (height, width, 3), on a logarithmic scale: equal factors, equal steps."""
    near, far = span
    known = np.isfinite(depth) & (depth > 0)
    place = np.log(np.where(known, depth, far) / far) / np.log(near / far)
    painted: NDArray[np.uint8] = depth_colours()[np.rint(255 * np.clip(place, 0, 1)).astype(np.int64)]
    painted[~known] = GAP
    return painted


def with_scale(picture: NDArray[np.uint8], span: tuple[float, float]) -> Image.Image:
    """Lay a bar that names depths in metres over the right edge of a picture; one too small for it stays as it is."""
    (height, width), (near, far) = picture.shape[:2], span
    whole = Image.fromarray(picture)
    draw = ImageDraw.Draw(whole)
    marks = [(value, f"{value:g} m") for value in scale_ticks(near, far)]
    room = 2 * EDGE + BAR + TICK + max(math.ceil(draw.textlength(text)) for _, text in marks)
    if height < MIN_BAR_ROWS or width < 3 * room:
        return whole
    left, top, bottom = width - room, 2 * EDGE, height - 2 * EDGE
    draw.rectangle([(left, 0), (width, height)], fill=BACK)
    steps = np.linspace(255, 0, bottom - top).round().astype(np.int64)
    bar = np.repeat(depth_colours()[steps][:, None], BAR, axis=1)
    whole.paste(Image.fromarray(bar), (left + EDGE, top))
    edge = left + EDGE + BAR
    for value, text in marks:
        row = top + (bottom - top - 1) * math.log(value / near) / math.log(far / near)
        draw.line([(edge, row), (edge + TICK, row)], fill=TEXT)
        draw.text((edge + TICK + 1, row - 5), text, fill=TEXT)
    return whole


def scale_ticks(near: float, far: float, most: int = 6) -> list[float]:
    """Return round depths between two, about equally far apart in factors, at least the two ends rounded."""
    powers = range(int(np.floor(np.log10(near))) - 1, int(np.ceil(np.log10(far))) + 1)
    for digits in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        values = [digit * 10.0**power for power in powers for digit in digits]
        inside = [float(f"{value:.3g}") for value in values if near <= value <= far]
        if 2 <= len(inside) <= most:
            return inside
    return [float(f"{near:.3g}"), float(f"{far:.3g}")]

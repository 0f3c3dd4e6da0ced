"""Monocular depth as a kind of task: targets, loss, figures, pictures. The only output channel is linear in metres.

Loss: the inverse Huber loss (berHu, Laina et al. 2016). With the largest error m of the batch and t = knee * m, an
error e counts |e| up to t and (e² + t²) / 2t beyond. Gaps (depth 0) never count. Where a batch is divided, each part
has its own knee; the normaliser is shared.

Figures: the errors of Eigen et al. (2014), computed for each image and averaged over images (`rmse`, `delta1`, ...),
and pooled over all pixels of all images (`pooled_rmse`, `pooled_delta1`, ...): papers use either. Only pixels whose
true depth lies within the task's span count; images without any are left out. Shares are fractions.

Pictures: near is light, far is dark, gaps are black; a bar at the right shows the scale in metres.
"""

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
from segtailor.tasks.kind import Forward, Head, Look, View, mark_errors
from segtailor.tasks.loss_settings import LossSettings, same_size
from segtailor.tasks.targets import Geometry, crop_nearest, rotate_maps

DEFAULT_SPAN_METRES = (0.1, 100.0)  # depths that count, for tasks without a span
SAME_DEPTH_SHARE = 0.01  # predictions that differ by at most this share differ only by rounding
FULL_ERROR_SHARE = 0.5  # of the true depth; larger errors are drawn in the full error colour
MILLIMETRES_PER_METRE = 1000
TINY = 1e-12  # keeps 0 / 0 at 0
DELTA_FACTOR = (
    1.25  # delta1 counts predictions within this factor of the truth, delta2 within its square, ...
)
MIN_DEPTH_METRES = 1e-3  # lower limit of predictions before their logarithm is taken
FIGURE_NAMES = ("delta1", "delta2", "delta3", "rmse", "rmse_log", "abs_rel", "sqr_rel")
POOLED_NAMES = tuple(f"pooled_{name}" for name in FIGURE_NAMES)
ROOTS = frozenset(("pooled_rmse", "pooled_rmse_log"))  # means of squares until all pixels are counted
GAP_COLOUR = (0, 0, 0)
# From far to near, equally spaced: dark violet, red, orange, pale yellow. Lightness increases throughout, so that the
# order is visible without colour vision.
COLOUR_ANCHORS = (
    (24, 15, 62),
    (87, 16, 110),
    (148, 38, 103),
    (203, 65, 73),
    (240, 112, 32),
    (251, 173, 40),
    (252, 242, 170),
)
BAR_WIDTH_PIXELS, BAR_MARGIN_PIXELS, TICK_LENGTH_PIXELS = (
    12,
    4,
    4,
)  # pixels: width of the bar, space around it, length of a tick
SCALE_TEXT_COLOUR = (235, 235, 235)
SCALE_BACKGROUND = (24, 24, 28)
MIN_BAR_ROWS = 40  # rows that a bar with labels needs


@dataclass(frozen=True, kw_only=True)
class DepthMaps:
    """Depth maps (height, width) in metres, 0 for gaps; resampled by the nearest value, never interpolated.

    An image enlarged by s looks as if taken from a distance s times smaller, so depths are divided by s, unless the
    augmentation has `rescale_depth` off.
    """

    missing: ClassVar[float] = 0.0
    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.float32)

    def shape(self, size: tuple[int, int]) -> tuple[int, ...]:
        """One depth per pixel."""
        return size

    def check(self, target: NDArray[Any], *, name: str) -> None:
        """Refuse depths that are negative or not finite."""
        if not np.isfinite(target).all() or (target < 0).any():
            raise DataProblem(
                f"sample '{name}' has depths that are negative or not numbers; write 0 where nothing was measured."
            )

    def crop(self, targets: Tensor, geometry: Geometry) -> Tensor:
        """Take the nearest depth, 0 outside of the source, and divide by the scale."""
        found = crop_nearest(targets, geometry)
        found.mul_(geometry.rows_inside[:, :, None]).mul_(geometry.columns_inside[:, None])
        if geometry.rescale:
            found.mul_(geometry.lines[:, 1].abs()[:, None, None])
        return found

    def turn(self, targets: Tensor, angles: Tensor, size: tuple[int, int]) -> Tensor:
        """Take the nearest depth; outside pixels become gaps."""
        del size
        return rotate_maps(targets[:, None], angles, mode="nearest")[:, 0]

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
        """Whether parts of a batch can share the normaliser: only if depth maps are not resized."""
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
    """Return the sum of the loss over all pixels with a depth; 0 where there are none."""
    error = torch.where(depths > 0, (predicted - depths).abs(), 0.0)
    limit = (knee * error.detach().max()).clamp(min=TINY)
    return torch.where(error <= limit, error, (error**2 + limit**2) / (2 * limit)).sum()


@dataclass(frozen=True, kw_only=True)
class DepthScores:
    """Figures of one evaluation; `delta1` to `delta3` are shares of pixels within a factor 1.25, 1.25², 1.25³.

    They are averages over images, those that start with `pooled_` over all pixels.
    """

    delta1: float
    delta2: float
    delta3: float
    rmse: float
    rmse_log: float
    abs_rel: float
    sqr_rel: float
    images: int = 0
    pooled_delta1: float = 0.0
    pooled_delta2: float = 0.0
    pooled_delta3: float = 0.0
    pooled_rmse: float = 0.0
    pooled_rmse_log: float = 0.0
    pooled_abs_rel: float = 0.0
    pooled_sqr_rel: float = 0.0

    @property
    def quality(self) -> float:
        """The headline figure: the share of pixels within a factor of 1.25."""
        return self.delta1

    @property
    def reward(self) -> float:
        """The headline figure."""
        return self.delta1

    def figures(self) -> dict[str, float]:
        """Return all figures by name."""
        return {name: getattr(self, name) for name in (*FIGURE_NAMES, *POOLED_NAMES)}

    def document(self, classes: Sequence[str]) -> dict[str, Json]:
        """Return the JSON form."""
        del classes
        return {**self.figures(), "images": self.images}


class DepthMeter:
    """Adds up the figures of images."""

    def __init__(self, span: tuple[float, float], device: torch.device | None = None) -> None:
        self.span = span
        self.images = 0
        # One sum per figure and the number of images that have a depth, then the same over pixels.
        self.sums = torch.zeros(2 * (len(FIGURE_NAMES) + 1), dtype=torch.float64, device=device)

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
        """Return the averages over images and over pixels; all are 0 where no image has a depth."""
        del without
        figures: dict[str, float] = {}
        for names, row in zip((FIGURE_NAMES, POOLED_NAMES), self.sums.reshape(2, -1).tolist(), strict=True):
            *sums, count = row
            for name, value in zip(names, sums, strict=True):
                mean = value / max(count, 1)
                figures[name] = math.sqrt(mean) if name in ROOTS else mean
        return DepthScores(**figures, images=self.images)


def _figures(found: Tensor, truth: Tensor) -> Tensor:
    """Return the figures of one image and 1, then the sums over its pixels and their number; zeros without depths."""
    if not truth.numel():
        return truth.new_zeros(2 * (len(FIGURE_NAMES) + 1))
    error = found - truth
    log = found.clamp(min=MIN_DEPTH_METRES).log() - truth.log()
    factor = log.abs()
    rows = [
        (factor < power * torch.log(truth.new_tensor(DELTA_FACTOR))).double().mean() for power in (1, 2, 3)
    ]
    rows += [(error**2).mean(), (log**2).mean(), (error.abs() / truth).mean(), (error**2 / truth).mean()]
    means = torch.stack([*rows, truth.new_ones(())])
    per_image = means.clone()
    for name in ("rmse", "rmse_log"):
        per_image[FIGURE_NAMES.index(name)].sqrt_()
    return torch.cat([per_image, means * truth.numel()])


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
        """Cut the upper left part."""
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
        """Mark errors, stronger for larger errors relative to the true depth."""
        del task
        known = target > 0
        off = np.abs(found - target) / np.where(known, target, 1.0)
        return mark_errors(image, np.where(known, off / FULL_ERROR_SHARE, 0.0))

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
            (GAP_COLOUR, f"not measured {gaps:.1%}"),
        ]

    def describe(self, found: NDArray[Any], task: Task) -> dict[str, float]:
        """Return nearest, median and farthest depth in metres."""
        del task
        near, middle, far = (float(value) for value in np.percentile(found, (0, 50, 100)))
        return {"nearest_m": near, "median_m": middle, "farthest_m": far}


@cache
def depth_colours() -> NDArray[np.uint8]:
    """Return 256 colours from far to near."""
    places = np.linspace(0, 1, len(COLOUR_ANCHORS))
    steps = np.linspace(0, 1, 256)
    columns = [np.interp(steps, places, [anchor[part] for anchor in COLOUR_ANCHORS]) for part in range(3)]
    return np.stack(columns, axis=1).round().astype(np.uint8)


def shown_span(depth: NDArray[np.float32]) -> tuple[float, float]:
    """Return the nearest and farthest depth that a picture shows: its 2nd and 98th percentile, a little apart."""
    known = depth[np.isfinite(depth) & (depth > 0)]
    if not known.size:
        return 0.5, 1.0
    near, far = (float(value) for value in np.percentile(known, (2, 98)))
    return near, max(far, near * 1.05)


def colourise_depth(depth: NDArray[np.float32], span: tuple[float, float]) -> NDArray[np.uint8]:
    """Return depth (height, width) as RGB (height, width, 3), on a logarithmic scale."""
    near, far = span
    known = np.isfinite(depth) & (depth > 0)
    place = np.log(np.where(known, depth, far) / far) / np.log(near / far)
    painted: NDArray[np.uint8] = depth_colours()[np.rint(255 * np.clip(place, 0, 1)).astype(np.int64)]
    painted[~known] = GAP_COLOUR
    return painted


def with_scale(picture: NDArray[np.uint8], span: tuple[float, float]) -> Image.Image:
    """Draw a scale in metres over the right edge of a picture; pictures that are too small stay as they are."""
    (height, width), (near, far) = picture.shape[:2], span
    whole = Image.fromarray(picture)
    draw = ImageDraw.Draw(whole)
    marks = [(value, f"{value:g} m") for value in scale_ticks(near, far)]
    room = (
        2 * BAR_MARGIN_PIXELS
        + BAR_WIDTH_PIXELS
        + TICK_LENGTH_PIXELS
        + max(math.ceil(draw.textlength(text)) for _, text in marks)
    )
    if height < MIN_BAR_ROWS or width < 3 * room:
        return whole
    left, top, bottom = width - room, 2 * BAR_MARGIN_PIXELS, height - 2 * BAR_MARGIN_PIXELS
    draw.rectangle([(left, 0), (width, height)], fill=SCALE_BACKGROUND)
    steps = np.linspace(255, 0, bottom - top).round().astype(np.int64)
    bar = np.repeat(depth_colours()[steps][:, None], BAR_WIDTH_PIXELS, axis=1)
    whole.paste(Image.fromarray(bar), (left + BAR_MARGIN_PIXELS, top))
    edge = left + BAR_MARGIN_PIXELS + BAR_WIDTH_PIXELS
    for value, text in marks:
        row = top + (bottom - top - 1) * math.log(value / near) / math.log(far / near)
        draw.line([(edge, row), (edge + TICK_LENGTH_PIXELS, row)], fill=SCALE_TEXT_COLOUR)
        draw.text((edge + TICK_LENGTH_PIXELS + 1, row - 5), text, fill=SCALE_TEXT_COLOUR)
    return whole


def scale_ticks(near: float, far: float, most: int = 6) -> list[float]:
    """Return round depths between two, spaced by similar factors; at least the two ends, rounded."""
    powers = range(int(np.floor(np.log10(near))) - 1, int(np.ceil(np.log10(far))) + 1)
    for digits in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        values = [digit * 10.0**power for power in powers for digit in digits]
        inside = [float(f"{value:.3g}") for value in values if near <= value <= far]
        if 2 <= len(inside) <= most:
            return inside
    return [float(f"{near:.3g}"), float(f"{far:.3g}")]


DEPTH = Depth()

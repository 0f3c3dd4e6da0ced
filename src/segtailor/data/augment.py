"""Augmentation of a whole batch on any device: random scale, crop, flip, rotation, colours, pasted classes and styles.

Images are resampled once, twice with rotation. Without rotation the geometry is separable: per image one table of
source rows and one of source columns. They are computed in double precision by NumPy, so that they do not depend on the
device, and sent in one copy. Images are sampled bilinearly; targets are resampled by their kind (`segtailor.tasks`).
Nothing is filtered before shrinking: at scale 0.5 two bilinear taps per axis are an exact box filter, between 0.5 and 1
the aliasing is slight.

`mix` pastes classes of one training image into another (ClassMix, Olsson et al. 2021, with true labels): objects appear
before new backgrounds, which small datasets lack. `restyle` gives an image the brightness and colour cast of another
(after Reinhard et al. 2001, in RGB): mean and spread of each channel move by an affine map, which is part of the colour
matrix that every image has anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segtailor.core.errors import UserError
from segtailor.core.task import IGNORE, Preprocessing
from segtailor.tasks.segmentation.kind import Labels
from segtailor.tasks.targets import Geometry, Targets, rotate_maps

LUMA = np.array([0.299, 0.587, 0.114])  # ITU-R BT.601
YIQ = np.array([LUMA, [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])  # hue: an angle in the last two axes
MAX_CROP_PIXELS = 2**24  # 4096x4096: larger than any training crop
DRAWS_PER_IMAGE = 8  # random numbers: scale, flip, two offsets, four colour factors
LABELS = Labels()  # the default targets
CHUNK_PIXELS = 400_000  # processed at a time on a CPU: they stay in the cache
STYLE_STEP_PIXELS = 4  # styles are measured on every fourth row and column
MIN_SPREAD = 1 / 255  # lower limit of a divisor: an image of one colour has no spread


@dataclass(frozen=True, kw_only=True)
class Augment:
    """Ranges of the random changes to training images; by default colours do not change.

    `brightness`, `contrast` and `saturation` x draw a factor from 1 - x to 1 + x, `hue` x a rotation of up to
    x turns. Colours are not clipped, and contrast is about the mean luminance of the preprocessing instead of
    that of each image: both keep the whole chain one 3x4 matrix per image. The scale is raised where the shorter
    side would have fewer than `shorter` pixels. `rotate` x turns crops by up to x degrees either way about their
    centre. With `rescale_depth` depths are divided by the scale of their image. `mix` is the share of images into which
    classes of another image are pasted. `restyle` x moves mean and spread of each colour channel by up to the share x
    towards those of another training image. With `scales` the scale is one of these values instead. People are scaled,
    turned and mirrored in their picture, around the middle of their box, before they are cut out (`from_picture`): the
    crop shows what lies around them. False changes the cut-out crop, whose surroundings are then lost.
    """

    crop: tuple[int, int]
    scale: tuple[float, float] = (0.5, 2.0)
    flip: float = 0.5
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    shorter: int = 0
    mix: float = 0.0
    rescale_depth: bool = True
    rotate: float = 0.0
    restyle: float = 0.0
    scales: tuple[float, ...] = ()
    from_picture: bool = True

    def __post_init__(self) -> None:
        if min(self.crop) < 1 or self.crop[0] * self.crop[1] > MAX_CROP_PIXELS:
            raise UserError(
                f"augment.crop: {self.crop[0]}x{self.crop[1]} cannot be cut; give height and width of at least 1 and "
                f"together at most {MAX_CROP_PIXELS} pixels, e.g. 512x1024."
            )
        if not 0 < self.scale[0] <= self.scale[1] < float("inf"):
            raise UserError(
                f"augment.scale: {self.scale} is not a range; give 0 < smallest <= largest, e.g. (0.5, 2.0)."
            )
        if not all(0 < value < float("inf") for value in self.scales):
            raise UserError(f"augment.scales: {self.scales}; give factors above 0, e.g. 0.75, 1, 1.25.")
        for name, most in (
            ("flip", 1.0),
            ("mix", 1.0),
            ("restyle", 1.0),
            ("brightness", 1.0),
            ("contrast", 1.0),
            ("saturation", 1.0),
            ("hue", 0.5),
            ("rotate", 180.0),
        ):
            value = getattr(self, name)
            if not 0 <= value <= most:
                raise UserError(f"augment.{name}: {value} is out of range; give a value from 0 to {most}.")

    @property
    def of_colours(self) -> Augment:
        """The same changes of colours, and no geometry: it is done where samples are cut anew."""
        return replace(self, scale=(1.0, 1.0), scales=(), flip=0.0, shorter=0, rotate=0.0)


class Taps(NamedTuple):
    """The source rows (or columns) of the output rows (columns) of each image; every table is (images, rows)."""

    low: NDArray[np.int32]
    high: NDArray[np.int32]
    nearest: NDArray[np.int32]
    inside: NDArray[np.int32]  # 1 where the source has such a row
    weight: NDArray[np.float32]  # of `high`


class BatchDraws(NamedTuple):
    """The random part of a batch: taps, colour matrices (images, 3, 4) on values 0..1, and the taps as lines.

    `lines` (images, 4): source row = lines[0] + lines[1] * row, source column = lines[2] + lines[3] * column. `turns`
    are the angles in radians, empty without rotation.
    """

    rows: Taps
    columns: Taps
    colour: NDArray[np.float64]
    lines: NDArray[np.float32]
    turns: NDArray[np.float32]
    rescale: bool = True

    def part(self, positions: slice) -> BatchDraws:
        """Return the draws of some positions in the batch, e.g. those of one process."""
        rows, columns = (Taps._make(table[positions] for table in taps) for taps in (self.rows, self.columns))
        rest = (self.colour[positions], self.lines[positions], self.turns[positions])
        return BatchDraws(rows, columns, *rest, self.rescale)


def draw(
    augment: Augment,
    sizes: NDArray[np.integer],
    *,
    rng: np.random.Generator,
    mean: Sequence[float] = (0.5, 0.5, 0.5),
) -> BatchDraws:
    """Draw for images of `sizes` (images, 2); the draws of position k do not depend on the batch size."""
    chance = rng.random((len(sizes), DRAWS_PER_IMAGE))
    if augment.scales:
        scale = np.asarray(augment.scales)[(chance[:, 0] * len(augment.scales)).astype(np.int64)]
    else:
        scale = augment.scale[0] + chance[:, 0] * (augment.scale[1] - augment.scale[0])
    scale = np.maximum(scale, augment.shorter / sizes.min(axis=1))
    flipped = chance[:, 1:2] < augment.flip
    heights, widths = sizes[:, 0:1].astype(np.int64), sizes[:, 1:2].astype(np.int64)
    rows = _sources(heights, augment.crop[0], scale[:, None], chance[:, 2:3])
    columns = _sources(widths, augment.crop[1], scale[:, None], chance[:, 3:4])
    columns = np.where(flipped, widths - 1 - columns, columns)
    if len(mean) == 3:
        colours = colour_matrices(augment, chance[:, 4:], grey=float(LUMA @ mean))
    else:
        colours = band_matrices(augment, chance[:, 4:], mean=mean)
    return BatchDraws(
        _taps(rows, heights),
        _taps(columns, widths),
        colours,
        _lines(rows, columns, sizes=sizes, scale=scale, flipped=flipped[:, 0]),
        _turns(augment, len(sizes), rng),
        augment.rescale_depth,
    )


def colour_matrices(augment: Augment, chance: NDArray[np.float64], *, grey: float) -> NDArray[np.float64]:
    """Turn four uniform numbers per image into (images, 3, 4): brightness, contrast, saturation, then hue."""
    signed = 2 * chance - 1
    brightness = 1 + augment.brightness * signed[:, 0]
    contrast = 1 + augment.contrast * signed[:, 1]
    saturation = 1 + augment.saturation * signed[:, 2]
    angle = 2 * np.pi * augment.hue * signed[:, 3]
    rotation = np.zeros((len(chance), 3, 3))
    rotation[:, 0, 0] = 1
    rotation[:, 1, 1] = rotation[:, 2, 2] = np.cos(angle)
    rotation[:, 2, 1] = np.sin(angle)
    rotation[:, 1, 2] = -rotation[:, 2, 1]
    hue = np.linalg.inv(YIQ) @ rotation @ YIQ if augment.hue else np.eye(3)  # exactly 1 without rotation
    washed = saturation[:, None, None] * np.eye(3) + (1 - saturation)[:, None, None] * LUMA
    linear = hue @ washed
    offset = linear @ np.full((3, 1), 1.0) * (grey * (1 - contrast))[:, None, None]
    return np.concatenate([linear * (brightness * contrast)[:, None, None], offset], axis=2)


def band_matrices(
    augment: Augment, chance: NDArray[np.float64], *, mean: Sequence[float]
) -> NDArray[np.float64]:
    """Return (images, bands, bands + 1) for pictures that are no RGB: brightness and contrast about the mean only."""
    signed = 2 * chance - 1
    brightness, contrast = 1 + augment.brightness * signed[:, 0], 1 + augment.contrast * signed[:, 1]
    linear = (brightness * contrast)[:, None, None] * np.eye(len(mean))
    offset = np.asarray(mean)[:, None] * (1 - contrast)[:, None, None]
    return np.concatenate([linear, offset], axis=2)


def resample(
    images: Tensor,
    labels: Tensor,
    *,
    index: NDArray[np.integer],
    drawn: BatchDraws,
    preprocessing: Preprocessing,
    targets: Targets = LABELS,
) -> tuple[Tensor, Tensor]:
    """Return normalised crops (batch, 3, h, w) and their targets, e.g. labels (batch, h, w), of the images at `index`.

    `images` is (n, 3, height, width) in uint8 and `labels` holds the targets, (n, height, width) for labels; both are
    contiguous and on the same device. Outside of the source the image is 0, the mean colour, and targets are missing.
    """
    tables = _send(index, drawn, preprocessing, images.device)
    count, height, width = len(index), drawn.rows.low.shape[1], drawn.columns.low.shape[1]
    crops = torch.empty((count, images.shape[1], height, width), device=images.device)
    crop_labels = []
    chunk = count if images.device.type != "cpu" else max(1, CHUNK_PIXELS // (height * width))
    for start in range(0, count, chunk):
        here = slice(start, start + chunk)
        part = _Tables(*(table[here] for table in tables))
        _sample_images(images, part, out=crops[here])
        crop_labels.append(targets.crop(labels, part.geometry(rescale=drawn.rescale)))
    found = torch.cat(crop_labels) if len(crop_labels) > 1 else crop_labels[0]
    if not len(drawn.turns):
        return crops, found
    angles = torch.from_numpy(drawn.turns).to(images.device)
    return rotate_maps(crops, angles, mode="bilinear"), targets.turn(found, angles, (height, width))


def draw_classes(count: int, *, share: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return (count, 256): which classes each image gets from its neighbour; none for 1 - `share` of the images."""
    chosen: NDArray[np.bool_] = rng.random((count, IGNORE + 1)) < 0.5
    chosen &= rng.random((count, 1)) < share
    chosen[:, IGNORE] = False  # ignored pixels are never pasted
    return chosen


def paste(images: Tensor, labels: Tensor, *, classes: NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
    """Paste `classes` between images 2k and 2k + 1, in both directions; a last image without a neighbour stays."""
    count = len(labels)
    other = (torch.arange(count, device=labels.device) ^ 1).clamp(max=count - 1)
    table = torch.from_numpy(classes)
    if labels.device.type != "cpu":
        table = table.pin_memory().to(labels.device, non_blocking=True)
    other_labels = labels[other]
    rows = torch.arange(count, device=labels.device)[:, None, None]
    taken = table[rows, other_labels.long()]
    return torch.where(taken[:, None], images[other], images), torch.where(taken, other_labels, labels)


class Styles(NamedTuple):
    """Mean and standard deviation of each channel, (images, 3), on values 0..1."""

    mean: NDArray[np.float64]
    spread: NDArray[np.float64]

    def of(self, index: NDArray[np.integer]) -> Styles:
        """Return the rows of some images."""
        return Styles(self.mean[index], self.spread[index])


def image_styles(images: NDArray[np.uint8], sizes: NDArray[np.integer]) -> Styles:
    """Measure the valid part of images (n, height, width, 3), one at a time: they may be a memory map."""
    rows = []
    for image, (height, width) in zip(images, sizes, strict=True):
        pixels = (
            np.asarray(image[:height:STYLE_STEP_PIXELS, :width:STYLE_STEP_PIXELS], dtype=np.float64).reshape(
                -1, image.shape[2]
            )
            / 255
        )
        rows.append((pixels.mean(axis=0), pixels.std(axis=0)))
    means, spreads = (np.stack(values) for values in zip(*rows, strict=True))
    return Styles(means, np.maximum(spreads, MIN_SPREAD))


def restyle(
    colour: NDArray[np.float64], own: Styles, other: Styles, *, strength: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return colour matrices (images, 3, 4) that first move the style of each image by `strength` towards another."""
    share = strength[:, None]
    scale = 1 + share * (other.spread / own.spread - 1)
    shift = own.mean + share * (other.mean - own.mean) - scale * own.mean
    linear, offset = colour[:, :, :-1], colour[:, :, -1:]
    return np.concatenate([linear * scale[:, None], linear @ shift[:, :, None] + offset], axis=2)


def _sources(
    size: NDArray[np.int64], crop: int, scale: NDArray[np.float64], chance: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the source coordinate of each output pixel along one axis; exact integers at scale 1."""
    scaled = np.maximum(1, np.rint(size * scale))
    slack = scaled - crop  # negative: the image is smaller than the crop and is placed at random inside it
    offset = np.sign(slack) * np.floor(chance * (np.abs(slack) + 1))
    source: NDArray[np.float64] = (np.arange(crop) + 0.5 + offset) * (size / scaled) - 0.5
    return source


def _turns(augment: Augment, count: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Draw angles from a separate stream, so that rotation does not change the other draws."""
    if not augment.rotate:
        return np.zeros(0, dtype=np.float32)
    chance = rng.spawn(1)[0].random(count)
    return np.deg2rad(augment.rotate * (2 * chance - 1)).astype(np.float32)


def _lines(
    rows: NDArray[np.float64],
    columns: NDArray[np.float64],
    *,
    sizes: NDArray[np.integer],
    scale: NDArray[np.float64],
    flipped: NDArray[np.bool_],
) -> NDArray[np.float32]:
    """Return the first source coordinate and the step between two, for rows and columns (images, 4)."""
    steps = sizes / np.maximum(1, np.rint(sizes * scale[:, None]))
    across = np.where(flipped, -steps[:, 1], steps[:, 1])
    return np.stack([rows[:, 0], steps[:, 0], columns[:, 0], across], axis=1).astype(np.float32)


def _taps(source: NDArray[np.float64], size: NDArray[np.int64]) -> Taps:
    inside = (source >= -0.5) & (source < size - 0.5)
    held = np.clip(source, 0, size - 1)  # never reads beyond the image into the padding of the canvas
    low = np.floor(held)
    whole = [table.astype(np.int32) for table in (low, np.ceil(held), np.floor(held + 0.5), inside)]
    return Taps._make([*whole, (held - low).astype(np.float32)])


class _Tables(NamedTuple):
    """What `resample` needs, on the device; int32 where nothing else is said."""

    image: Tensor  # (batch, 1)
    row_low: Tensor
    row_high: Tensor
    row_nearest: Tensor
    row_inside: Tensor
    row_weight: Tensor  # float32
    column_low: Tensor
    column_high: Tensor
    column_nearest: Tensor
    column_inside: Tensor
    column_weight: Tensor  # float32
    colour: Tensor  # (batch, channels * (channels + 1)) float32
    lines: Tensor  # (batch, 4) float32

    def geometry(self, *, rescale: bool) -> Geometry:
        """Return what targets need."""
        return Geometry(
            self.image,
            self.row_nearest,
            self.column_nearest,
            self.row_inside,
            self.column_inside,
            self.lines,
            rescale,
        )


def _send(
    index: NDArray[np.integer], drawn: BatchDraws, preprocessing: Preprocessing, device: torch.device
) -> _Tables:
    """Pack all small tables into one buffer, so that a batch needs a single asynchronous copy."""
    colour = _normalised(drawn.colour, preprocessing)
    parts = [index.astype(np.int32)[:, None], *drawn.rows, *drawn.columns, colour.reshape(len(index), -1)]
    parts.append(drawn.lines)
    packed = torch.from_numpy(np.concatenate([part.view(np.int32) for part in parts], axis=1))
    if device.type != "cpu":
        packed = packed.pin_memory().to(device, non_blocking=True)
    pieces = torch.split(packed, [part.shape[1] for part in parts], dim=1)
    pairs = zip(pieces, parts, strict=True)
    return _Tables(
        *(piece.view(torch.float32) if part.dtype == np.float32 else piece for piece, part in pairs)
    )


def _normalised(colour: NDArray[np.float64], preprocessing: Preprocessing) -> NDArray[np.float32]:
    """Fold `(x / 255 - mean) / std` into the colour matrices."""
    mean, std = np.array(preprocessing.mean), np.array(preprocessing.std)
    matrix = colour / std[:, None]
    matrix[:, :, :-1] /= 255
    matrix[:, :, -1] -= mean / std
    folded: NDArray[np.float32] = matrix.astype(np.float32)
    return folded


def _sample_images(images: Tensor, tables: _Tables, *, out: Tensor) -> None:
    batch, channels, height, width = out.shape
    lines = images.view(-1, images.shape[-1])
    plane = tables.image[:, :, None] * channels + torch.arange(channels, device=out.device)[:, None]
    first = plane * images.shape[2]  # (batch, channels, 1): the first line of each colour plane

    def pick(rows: Tensor) -> Tensor:
        chosen = lines.index_select(0, (first + rows[:, None]).flatten())
        return chosen.float().view(batch, channels, height, -1)

    def shift(columns: Tensor) -> Tensor:
        return mixed.gather(3, columns.long()[:, None, None].expand(batch, channels, height, width))

    mixed = pick(tables.row_low).lerp_(pick(tables.row_high), tables.row_weight[:, None, :, None])
    pixels = shift(tables.column_low).lerp_(shift(tables.column_high), tables.column_weight[:, None, None])
    matrix = tables.colour.view(batch, channels, channels + 1)
    torch.baddbmm(matrix[:, :, -1:], matrix[:, :, :-1], pixels.flatten(2), out=out.flatten(2))
    out.mul_(tables.row_inside[:, None, :, None]).mul_(tables.column_inside[:, None, None])

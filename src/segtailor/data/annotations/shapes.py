"""What annotation files come down to: per picture a list of shapes with class and order, and how they become labels.

Coordinates are pixels: x to the right and y downwards from the upper left corner of the picture, so that the centre of
the first pixel is (0.5, 0.5). A pixel belongs to a shape when its centre does.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from segtailor.core.errors import DataProblem
from segtailor.data.annotations.runs import BrokenRuns, counts_of_text, mask_of_brush, mask_of_counts
from segtailor.data.dataset import Severity
from segtailor.data.files import MAX_PIXELS, decode_image, file_fingerprint, read_mask

Points: TypeAlias = NDArray[np.float64]  # (n, 2): x, y
MAX_COORDINATE = 1e7  # pixels
MAX_POINTS = 100_000  # of one outline
MAX_CROSSINGS = 2**24  # of outlines with rows of pixels, at once
MAX_OVERHANG_PIXELS = 1.0  # tools round; what lies farther outside of the picture is reported


class ShapeFault(DataProblem):
    """Why one annotation cannot be used (error), or is used only in part (warning). `kind` is the doctor's."""

    def __init__(self, kind: str, message: str, severity: Severity = "error") -> None:
        super().__init__(message)
        self.kind, self.severity = kind, severity


class LabelPatch(NamedTuple):
    """Set pixels of a shape within a window of the picture, and how far the shape reaches beyond the picture."""

    top: int
    left: int
    mask: NDArray[np.bool_]
    overhang: float = 0.0


class ShapeGeometry(Protocol):
    """The place of a shape."""

    def patch(self, size: tuple[int, int]) -> LabelPatch:
        """Return its pixels in a picture of `size` (height, width), or raise `ShapeFault`."""

    def content(self) -> bytes:
        """Return everything that the pixels depend on."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Outlines:
    """Closed outlines of one object, united. Inside is what an outline winds around an odd number of times."""

    rings: tuple[Points, ...]

    def patch(self, size: tuple[int, int]) -> LabelPatch:
        """Fill each outline."""
        low = np.min([ring.min(0) for ring in self.rings], axis=0)
        high = np.max([ring.max(0) for ring in self.rings], axis=0)
        window = _window(low, high, size)
        mask = np.zeros((window.bottom - window.top, window.right - window.left), np.bool_)
        for ring in self.rings:
            mask |= _filled(ring, window)
        return LabelPatch(window.top, window.left, mask, _overhang(low, high, size))

    def content(self) -> bytes:
        """Coordinates."""
        return b"|".join(ring.tobytes() for ring in self.rings)


@dataclass(frozen=True, kw_only=True)
class Ellipse:
    """An ellipse turned by `degrees` clockwise."""

    centre: tuple[float, float]
    radii: tuple[float, float]
    degrees: float = 0.0

    def patch(self, size: tuple[int, int]) -> LabelPatch:
        """Test the centre of every pixel around it."""
        angle = math.radians(self.degrees)
        cosine, sine = math.cos(angle), math.sin(angle)
        wide, tall = self.radii
        reach = np.array([math.hypot(wide * cosine, tall * sine), math.hypot(wide * sine, tall * cosine)])
        low, high = np.subtract(self.centre, reach), np.add(self.centre, reach)
        window = _window(low, high, size)
        y, x = np.mgrid[window.top : window.bottom, window.left : window.right] + 0.5
        along = (x - self.centre[0]) * cosine + (y - self.centre[1]) * sine
        across = (y - self.centre[1]) * cosine - (x - self.centre[0]) * sine
        mask = (along / wide) ** 2 + (across / tall) ** 2 <= 1
        return LabelPatch(window.top, window.left, mask, _overhang(low, high, size))

    def content(self) -> bytes:
        """All numbers."""
        return repr(self).encode()


@dataclass(frozen=True, kw_only=True)
class Runs:
    """A mask of `size` (height, width) in alternating runs: the whole picture by columns, or a box in it by rows.

    `counts` are numbers or COCO's text. A `box` has its upper left corner (top, left) there.
    """

    counts: tuple[int, ...] | str
    size: tuple[int, int]
    box: tuple[int, int] | None = None

    def patch(self, size: tuple[int, int]) -> LabelPatch:
        """Decode the runs."""
        height, width = self.size
        if self.box is None and self.size != size:
            raise ShapeFault(
                "rle-size", f"its RLE is for {width}x{height} pixels, the picture has {size[1]}x{size[0]}"
            )
        if not 0 < height * width <= MAX_PIXELS:
            raise ShapeFault(
                "rle-size", f"its RLE is for {width}x{height} pixels; at most {MAX_PIXELS} are read"
            )
        try:
            counts = counts_of_text(self.counts) if isinstance(self.counts, str) else self.counts
            flat = mask_of_counts(counts, height * width)
        except BrokenRuns as problem:
            raise ShapeFault("broken-rle", f"its RLE is broken: {problem}") from None
        if self.box is None:
            return LabelPatch(0, 0, flat.reshape(width, height).T)
        return _cut(*self.box, flat.reshape(height, width), size)

    def content(self) -> bytes:
        """Runs and place."""
        return repr(self).encode()


@dataclass(frozen=True, kw_only=True)
class Brush:
    """A mask of the whole picture as Label Studio's brush stores it; `size` is what the file states."""

    data: bytes
    size: tuple[int, int]

    def patch(self, size: tuple[int, int]) -> LabelPatch:
        """Decode the bit stream."""
        height, width = self.size
        if self.size != size:
            raise ShapeFault(
                "rle-size", f"its brush is for {width}x{height} pixels, the picture has {size[1]}x{size[0]}"
            )
        try:
            return LabelPatch(0, 0, mask_of_brush(self.data, height * width).reshape(size))
        except BrokenRuns as problem:
            raise ShapeFault("broken-rle", f"its brush is broken: {problem}") from None

    def content(self) -> bytes:
        """The stream."""
        return repr(self.size).encode() + self.data


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """A small picture in base64 whose light pixels are set, with its upper left corner at (top, left)."""

    text: str
    corner: tuple[int, int]

    def patch(self, size: tuple[int, int]) -> LabelPatch:
        """Decode the picture."""
        try:
            data = base64.b64decode(self.text, validate=True)
            values = decode_image(data, name="mask", limit=4 * size[0] * size[1])
        except (binascii.Error, ValueError):
            raise ShapeFault("broken-mask", "its mask is not base64") from None
        except DataProblem as problem:
            raise ShapeFault("broken-mask", f"its mask is broken: {problem}") from None
        return _cut(*self.corner, values.max(2) > 0, size)

    def content(self) -> bytes:
        """Picture and place."""
        return repr(self.corner).encode() + self.text.encode(errors="replace")


@dataclass(frozen=True, kw_only=True)
class LabelShape:
    """One annotated object: its class, its place, and its order; higher orders are drawn over lower ones.

    `who` names it in messages, e.g. 'annotation 17'.
    """

    name: str
    geometry: ShapeGeometry
    order: int = 0
    who: str = ""


@dataclass(frozen=True, kw_only=True)
class SegmentMap:
    """COCO's panoptic PNG: the number of the segment of each pixel, red + 256 green + 65536 blue; 0 is unlabelled."""

    file: Path
    classes: Mapping[int, str]

    def content(self) -> bytes:
        """The file and the class of each segment."""
        return f"{file_fingerprint(self.file)}|{sorted(self.classes.items())}".encode()

    def read(self, size: tuple[int, int]) -> NDArray[np.int64]:
        """Return the segment of each pixel."""
        try:
            raw = read_mask(self.file)
        except DataProblem as problem:
            raise ShapeFault("unreadable", str(problem)) from None
        values = raw.values.astype(np.int64)
        if raw.coloured:
            values = values @ np.array([1, 256, 65536])
        if values.shape != size:
            height, width = values.shape
            raise ShapeFault(
                "size-mismatch", f"{self.file} is {width}x{height}, its picture {size[1]}x{size[0]}"
            )
        strange = sorted(set(np.unique(values).tolist()) - {0, *self.classes})
        if strange:
            raise ShapeFault(
                "unknown-segment",
                f"{self.file} holds segment {strange[0]}, which the annotation does not list",
            )
        return values


@dataclass(frozen=True, kw_only=True)
class AnnotatedPicture:
    """One picture with everything annotated in it. `split` is empty where the files do not divide pictures.

    `size` (height, width) is what the annotation file states; `file` is that file.
    """

    image: Path
    file: Path
    split: str = ""
    size: tuple[int, int] | None = None
    shapes: tuple[LabelShape, ...] = ()
    segments: SegmentMap | None = None

    @property
    def fingerprint(self) -> str:
        """Changes when the picture or any annotation of it does."""
        content = hashlib.sha256(self.segments.content() if self.segments else b"")
        for shape in self.shapes:
            content.update(
                f"\0{shape.name}\0{shape.order}\0{type(shape.geometry).__name__}\0".encode(errors="replace")
            )
            content.update(shape.geometry.content())
        return f"{file_fingerprint(self.image)}|{self.size}|{content.hexdigest()[:32]}"

    def mismatch(self, size: tuple[int, int]) -> ShapeFault | None:
        """Return the fault of a picture whose size is not the one that its annotation states."""
        if self.size is None or self.size == size:
            return None
        stated = f"{self.size[1]}x{self.size[0]}"
        return ShapeFault(
            "size-mismatch",
            f"{self.file} states {stated} for {self.image}, which is {size[1]}x{size[0]} upright. Annotate the picture "
            "as it is now, or restore the one that was annotated.",
        )


class Drawing(NamedTuple):
    """The labels of a picture (height, width), and what is wrong with its annotations."""

    labels: NDArray[np.uint8]
    faults: tuple[ShapeFault, ...]


@dataclass(frozen=True, kw_only=True)
class Labelling:
    """The label of each class (255 for one that does not count), and of pixels without annotation.

    Shapes of classes that are not listed are not drawn.
    """

    labels: Mapping[str, int]
    unlabelled: int

    @property
    def fingerprint(self) -> str:
        """Changes whenever the same shapes would give other labels."""
        return f"{sorted(self.labels.items())}|{self.unlabelled}"

    def draw(self, picture: AnnotatedPicture, size: tuple[int, int]) -> Drawing:
        """Draw all shapes of a picture, lowest order first, then as in the file; faulty ones are left out."""
        canvas = np.full(size, self.unlabelled, np.uint8)
        faults: list[ShapeFault] = []
        mismatch = picture.mismatch(size)
        if mismatch is not None:
            return Drawing(canvas, (mismatch,))  # every shape would be wrong in the same way
        if picture.segments is not None:
            try:
                self._paint_segments(canvas, picture.segments)
            except ShapeFault as fault:
                faults.append(_placed(fault, picture, "its segments"))
        for shape in sorted(picture.shapes, key=lambda shape: shape.order):
            try:
                patch = shape.geometry.patch(size)
            except ShapeFault as fault:
                faults.append(_placed(fault, picture, shape.who))
                continue
            if patch.overhang > MAX_OVERHANG_PIXELS:
                beyond = f"reaches {patch.overhang:.0f} pixels beyond the picture; that part is cut off"
                faults.append(_placed(ShapeFault("outside", beyond, "warning"), picture, shape.who))
            label = self.labels.get(shape.name)
            if label is not None:
                height, width = patch.mask.shape
                canvas[patch.top : patch.top + height, patch.left : patch.left + width][patch.mask] = label
        return Drawing(canvas, tuple(faults))

    def _paint_segments(self, canvas: NDArray[np.uint8], segments: SegmentMap) -> None:
        values = segments.read((canvas.shape[0], canvas.shape[1]))
        for number, name in segments.classes.items():
            label = self.labels.get(name)
            if label is not None:
                canvas[values == number] = label


def outlines(rings: list[Points]) -> Outlines:
    """Return closed outlines; fewer than three points, or too many, raise `ShapeFault`."""
    for ring in rings:
        if len(ring) < 3:
            raise ShapeFault("polygon", f"its polygon has {len(ring)} points; at least 3 enclose something")
        check_points(len(ring))
    return Outlines(rings=tuple(rings))


def check_points(count: int) -> None:
    """Refuse an outline of too many points."""
    if count > MAX_POINTS:
        raise ShapeFault("polygon", f"its polygon has {count} points, over the limit of {MAX_POINTS}")


def rectangle(corner: tuple[float, float], wide: float, tall: float, degrees: float = 0.0) -> Outlines:
    """Return a rectangle from its upper left corner, turned clockwise around that corner."""
    if not (wide > 0 and tall > 0):
        raise ShapeFault("polygon", f"its box is {wide:g}x{tall:g}; both sides must be over 0")
    angle = math.radians(degrees)
    turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    corners = np.array([(0, 0), (wide, 0), (wide, tall), (0, tall)]) @ turn + np.array(corner)
    return Outlines(rings=(corners,))


class _Window(NamedTuple):
    top: int
    bottom: int
    left: int
    right: int


def _window(low: Points, high: Points, size: tuple[int, int]) -> _Window:
    """Return the pixels between two corners, cut at the picture; none of them raises."""
    height, width = size
    if high[0] <= 0 or high[1] <= 0 or low[0] >= width or low[1] >= height:
        raise ShapeFault(
            "outside",
            f"it lies outside of the picture: x {low[0]:.0f} to {high[0]:.0f}, y {low[1]:.0f} to {high[1]:.0f} in "
            f"{width}x{height} pixels",
        )
    left, top = (max(0, math.floor(value)) for value in low)
    return _Window(top, min(height, math.ceil(high[1])), left, min(width, math.ceil(high[0])))


def _overhang(low: Points, high: Points, size: tuple[int, int]) -> float:
    return float(max(-low[0], -low[1], high[0] - size[1], high[1] - size[0], 0.0))


def _filled(ring: Points, window: _Window) -> NDArray[np.bool_]:
    """Return the pixels whose centres the outline winds around an odd number of times.

    Every edge switches the pixels to the right of it, in each row whose centre line it crosses.
    """
    height, width = window.bottom - window.top, window.right - window.left
    start, end = ring, np.roll(ring, -1, axis=0)
    downwards = (start[:, 1] < end[:, 1])[:, None]
    upper, lower = np.where(downwards, start, end), np.where(downwards, end, start)
    first = np.clip(np.ceil(upper[:, 1] - 0.5), window.top, window.bottom).astype(np.int64)
    last = np.clip(np.ceil(lower[:, 1] - 0.5), window.top, window.bottom).astype(np.int64)
    crossings = last - first
    if crossings.sum() > MAX_CROSSINGS:
        raise ShapeFault("polygon", f"its polygon crosses rows of pixels {int(crossings.sum())} times")
    edge = np.repeat(np.arange(len(ring)), crossings)
    row = np.arange(len(edge)) - np.repeat(np.cumsum(crossings) - crossings, crossings) + first[edge]
    slope = (lower[edge, 0] - upper[edge, 0]) / (lower[edge, 1] - upper[edge, 1])
    x = upper[edge, 0] + (row + 0.5 - upper[edge, 1]) * slope
    column = np.clip(np.ceil(x - 0.5), window.left, window.right).astype(np.int64)
    place = (row - window.top) * (width + 1) + column - window.left
    switches = np.bincount(place, minlength=height * (width + 1)).reshape(height, width + 1)
    return np.asarray(np.cumsum(switches[:, :width], axis=1) % 2 == 1)


def _cut(top: int, left: int, mask: NDArray[np.bool_], size: tuple[int, int]) -> LabelPatch:
    """Return the part of a mask that lies inside of the picture."""
    low = np.array([left, top], np.float64)
    high = low + np.array([mask.shape[1], mask.shape[0]])
    window = _window(low, high, size)
    inside = mask[window.top - top : window.bottom - top, window.left - left : window.right - left]
    return LabelPatch(window.top, window.left, inside, _overhang(low, high, size))


def _placed(fault: ShapeFault, picture: AnnotatedPicture, who: str) -> ShapeFault:
    """Return the fault with the file, the annotation and the picture that it is about."""
    message = f"{picture.file}: {who} of {picture.image.name}: {fault}"
    return ShapeFault(fault.kind, f"{message.rstrip('.')}. Correct or remove it.", fault.severity)

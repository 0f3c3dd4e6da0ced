"""A large picture in overlapping tiles: where they lie, how they are blended, and the labels band by band.

Tiles start at multiples of `ALIGNMENT`, so that the layers of a network see the same grid as in the whole picture. Two
neighbours overlap by a quarter of a tile. Near its border a tile is not used, because a network sees padding there
instead of the picture; in the middle half of the overlap the weight moves smoothly from one tile to the next. The
weights of all tiles add up to 1 at every pixel.

Only the scores of one tile and of the blended rows below a row of tiles are kept, the latter on disk beyond
`MAX_KEPT_BYTES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from segtailor.core.errors import Unsupported
from segtailor.data.parts import Rows

ALIGNMENT = 32  # pixels; the deepest stride of the families
OVERLAP_SHARE = 4  # a quarter of a tile
LEAST_TILE_PIXELS = 4 * ALIGNMENT  # of a side: a shorter tile is border only
MAX_TILE_PIXELS = 2**22
MAX_KEPT_BYTES = 2**27
DEFAULT_TILE = (1024, 1024)

Scores = Callable[[NDArray[np.uint8]], NDArray[np.float32]]  # picture -> (classes, height, width), sum 1


class Span(NamedTuple):
    """One tile along one side: read from `begin` to `end`, used from `start` to `stop`; weights over the used part."""

    begin: int
    end: int
    start: int
    stop: int
    weights: NDArray[np.float32]


class Band(NamedTuple):
    """Finished rows of a picture from `top`: the pixels, labels, and the score of the label (its confidence)."""

    top: int
    pixels: NDArray[np.uint8]
    labels: NDArray[np.uint8]
    confidence: NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """The size of a tile (height, width), rounded up to multiples of 32."""

    tile: tuple[int, int] = DEFAULT_TILE

    def __post_init__(self) -> None:
        if min(self.tile) < LEAST_TILE_PIXELS or math.prod(self.tile) > MAX_TILE_PIXELS:
            raise Unsupported(
                f"tile {self.tile[0]}x{self.tile[1]} is too small or too large; give sides of {LEAST_TILE_PIXELS} "
                f"pixels or more and at most {MAX_TILE_PIXELS} pixels, for example 1024x1024."
            )
        object.__setattr__(self, "tile", tuple(math.ceil(side / ALIGNMENT) * ALIGNMENT for side in self.tile))

    def kept_bytes(self, size: tuple[int, int], classes: int) -> int:
        """Return what is kept of the scores between two rows of tiles of a picture."""
        overlap = self.tile[0] // OVERLAP_SHARE
        return 4 * classes * overlap * size[1] if size[0] > self.tile[0] else 0

    def count(self, size: tuple[int, int]) -> int:
        """Return the number of tiles of a picture."""
        return math.prod(len(spans(side, tile)) for side, tile in zip(size, self.tile, strict=True))


def spans(side: int, tile: int) -> list[Span]:
    """Return the tiles along one side of a picture."""
    overlap = tile // OVERLAP_SHARE // ALIGNMENT * ALIGNMENT
    step, unused = tile - overlap, overlap // 4
    count = 1 if side <= tile else math.ceil((side - overlap) / step)
    ramp = np.sin(np.linspace(0, np.pi / 2, overlap - 2 * unused + 2, dtype=np.float64)[1:-1]) ** 2
    rising = ramp.astype(np.float32)
    found = []
    for index in range(count):
        first, last = index == 0, index == count - 1
        place = index * step
        # The last tile is as large as the others: it begins further up, where nothing of it is used.
        begin = max(0, side - tile) // ALIGNMENT * ALIGNMENT if last else place
        start = 0 if first else place + unused
        stop = side if last else place + tile - unused
        weights = np.ones(stop - start, np.float32)
        if not first:
            weights[: len(rising)] = rising
        if not last:
            weights[-len(rising) :] = 1 - rising
        found.append(
            Span(begin=begin, end=side if last else place + tile, start=start, stop=stop, weights=weights)
        )
    return found


def label_bands(picture: Rows, scores: Scores, tiling: Tiling, *, classes: int) -> Iterator[Band]:
    """Label a picture tile by tile, and yield its finished rows from top to bottom."""
    height, width = picture.size
    down, across = spans(height, tiling.tile[0]), spans(width, tiling.tile[1])
    with _Kept(classes, down, across) as kept:
        for row, span in enumerate(down):
            pixels = picture.read(span.begin, span.end)
            bottom = _next_start(down, row)
            labels = np.empty((bottom - span.start, width), np.uint8)
            confidence = np.empty((bottom - span.start, width), np.float32)
            blocks = _blended(pixels, scores, span, across)
            for column, block in enumerate(blocks):
                if row > 0:
                    above = kept.take(row - 1, column)
                    block[:, : above.shape[1]] += above
                if row < len(down) - 1:
                    kept.put(row, column, block[:, bottom - span.start :])
                done = block[:, : bottom - span.start]
                place = slice(across[column].start, _next_start(across, column))
                labels[:, place] = done.argmax(0)
                confidence[:, place] = done.max(0)
            yield Band(
                top=span.start,
                pixels=pixels[span.start - span.begin : bottom - span.begin],
                labels=labels,
                confidence=confidence,
            )


def label_in_tiles(pixels: Rows, scores: Scores, tiling: Tiling, *, classes: int) -> NDArray[np.uint8]:
    """Return the labels of a picture that fits in memory."""
    return np.concatenate([band.labels for band in label_bands(pixels, scores, tiling, classes=classes)])


def _blended(
    pixels: NDArray[np.uint8], scores: Scores, span: Span, across: Sequence[Span]
) -> Iterator[NDArray[np.float32]]:
    """Yield the weighted scores of a row of tiles, up to where the next tile starts; blended along the row."""
    carried: NDArray[np.float32] | None = None
    for index, column in enumerate(across):
        found = scores(np.ascontiguousarray(pixels[:, column.begin : column.end]))
        used = found[
            :,
            span.start - span.begin : span.stop - span.begin,
            column.start - column.begin : column.stop - column.begin,
        ]
        block = used * span.weights[:, None] * column.weights
        del found, used
        if carried is not None:
            block[:, :, : carried.shape[2]] += carried
        done = _next_start(across, index) - column.start
        carried = block[:, :, done:].copy()
        yield block[:, :, :done]


def _next_start(along: Sequence[Span], index: int) -> int:
    return along[index + 1].start if index + 1 < len(along) else along[index].stop


class _Kept:
    """The blended scores below a row of tiles, one record per column; in memory, or on disk where they are large."""

    def __init__(self, classes: int, down: Sequence[Span], across: Sequence[Span]) -> None:
        self._classes = classes
        self._rows = [span.stop - _next_start(down, index) for index, span in enumerate(down)]
        self._starts = [span.start for span in across] + [across[-1].stop]
        self._file = SpooledTemporaryFile(max_size=MAX_KEPT_BYTES)  # noqa: SIM115 - closed by __exit__

    def __enter__(self) -> _Kept:
        return self

    def __exit__(self, *problem: object) -> None:
        self._file.close()

    def put(self, row: int, column: int, block: NDArray[np.float32]) -> None:
        self._seek(row, column)
        self._file.write(np.ascontiguousarray(block).tobytes())

    def take(self, row: int, column: int) -> NDArray[np.float32]:
        self._seek(row, column)
        shape = (self._classes, self._rows[row], self._starts[column + 1] - self._starts[column])
        data = self._file.read(4 * math.prod(shape))
        return np.frombuffer(data, np.float32).reshape(shape)

    def _seek(self, row: int, column: int) -> None:
        self._file.seek(4 * self._classes * self._rows[row] * self._starts[column])

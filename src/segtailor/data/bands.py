"""Picture files with any number of bands: TIFF and NPY of 8, 16 and 32 bits, grey and colour; and their statistics."""

from __future__ import annotations

import math
import stat
import struct
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from segtailor.core.errors import DataProblem
from segtailor.core.memory import check_memory
from segtailor.core.task import MAX_BANDS, Preprocessing
from segtailor.data.files import MAX_PIXELS, decoded_picture, image_size, opened_picture, read_image, unusable
from segtailor.data.parts import (
    BITS,
    CHUNKY,
    COMPRESSION,
    HEIGHT,
    LARGE_PIXELS,
    MAX_PART_BYTES,
    MAX_SIDE_PIXELS,
    ORIENTATION,
    PHOTOMETRIC,
    PLANAR,
    ROWS_PER_STRIP,
    SAMPLES,
    STRIP_BYTES,
    STRIP_OFFSETS,
    TILE_BYTES,
    TILE_HEIGHT,
    TILE_OFFSETS,
    TILE_WIDTH,
    UNCOMPRESSED,
    UPRIGHT,
    WIDTH,
    Fields,
    damage,
    field_numbers,
    one_part_tiff,
    tiff_directory,
)  # fmt: skip
from segtailor.tasks.bands import scaled_bands

PREDICTOR, SAMPLE_FORMAT = 317, 339
NO_PREDICTOR, DIFFERENCES = 1, 2
LOSSLESS = (UNCOMPRESSED, 5, 8, 32773, 32946, 50000)  # LZW, deflate, PackBits, deflate, Zstandard
BLACK_IS_ZERO = 1
SAMPLE_TYPES = {(1, 8): "u1", (1, 16): "u2", (1, 32): "u4", (2, 16): "i2", (2, 32): "i4", (3, 32): "f4"}
MAX_VALUES = 4 * MAX_PIXELS  # of one picture, over all bands
STATISTICS_FILES = 64  # pictures that statistics are computed from, spread over the split
STATISTICS_PIXELS = 2**16  # of each
WINDOW_SIDE_PIXELS = 256  # of the windows that figures are computed from
ARRAY_BEGIN = b"\x93NUMPY"
TIFF_BEGINS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
TAILS = (0.5, 99.5)  # percentiles that become 0 and 255
LEAST_STD = 1 / 255


def read_bands(path: Path, *, bands: int) -> NDArray[Any]:
    """Read a picture as stored, (height, width, bands); a file with another number of bands raises `DataProblem`."""
    with damage(path):
        _check_regular(path)
        with path.open("rb") as stream:
            begin = stream.read(6)
            if begin[:4] in TIFF_BEGINS:
                values = _read_tiff(stream, path)
    if begin == ARRAY_BEGIN:
        values = _read_array(path)
    elif begin[:4] not in TIFF_BEGINS:
        with opened_picture(path) as picture:
            values = _values_of_picture(picture)
    if values.shape[2] != bands:
        raise unusable(
            f"image {path}", f"it has {values.shape[2]} bands, not {bands}", "Correct `bands`, or the file."
        )
    return values


def read_scaled(path: Path, ranges: Sequence[tuple[float, float]] | None) -> NDArray[np.uint8]:
    """Read a picture as networks see it before it is normalised: RGB, or bands scaled by their ranges."""
    return read_image(path) if ranges is None else scaled_bands(read_bands(path, bands=len(ranges)), ranges)


def uploaded_size(data: bytes, *, bands: int, limit: int) -> tuple[int, int]:
    """Return the height and width that the header of an uploaded picture states; `limit` bounds its pixels.

    Other files, and pictures of another number of bands, raise `DataProblem`. Nothing is decoded.
    """
    name, stream = Path("you sent"), BytesIO(data)
    with damage(name):
        if data[:6] == ARRAY_BEGIN:
            version = np.lib.format.read_magic(stream)
            header = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            shape, _, dtype = header(stream, max_header_size=10_000)
            shape = (*shape, 1) if len(shape) == 2 else shape
            if len(shape) != 3 or dtype.kind not in "uif":
                raise unusable(
                    "image you sent", f"it holds {dtype} {shape}, not numbers (height, width, bands)"
                )
            if math.prod(shape) * dtype.itemsize != len(data) - stream.tell():
                raise unusable("image you sent", "its length is not what its header says")
        elif data[:4] in TIFF_BEGINS:
            layout = _layout(stream, name)
            shape = (layout.height, layout.width, layout.bands)
        else:
            height, width = image_size(data, name="you sent", limit=limit)
            shape = (height, width, 0)  # its bands are counted when it is decoded
    _check((*shape[:2], shape[2] or 1), name)
    if shape[0] * shape[1] > limit:
        raise unusable(
            "image you sent", f"{shape[1]}x{shape[0]} is over the limit of {limit} pixels", "Cut it first."
        )
    if shape[2] not in (0, bands):
        raise unusable(
            "image you sent", f"it has {shape[2]} bands, the network reads {bands}", "Send another."
        )
    return shape[0], shape[1]


def uploaded_bands(data: bytes, *, bands: int, limit: int) -> NDArray[Any]:
    """Decode an uploaded picture as stored, (height, width, bands); checked by `uploaded_size` first."""
    uploaded_size(data, bands=bands, limit=limit)
    name, stream = Path("you sent"), BytesIO(data)
    with damage(name):
        if data[:6] == ARRAY_BEGIN:
            array = np.lib.format.read_array(stream, allow_pickle=False, max_header_size=10_000)
            values = array if array.ndim == 3 else array[:, :, None]
        elif data[:4] in TIFF_BEGINS:
            values = _read_tiff(stream, name)
        else:
            with decoded_picture(data, name="you sent", limit=limit) as picture:
                values = _values_of_picture(picture)
    if values.shape[2] != bands:
        raise unusable(
            "image you sent", f"it has {values.shape[2]} bands, the network reads {bands}", "Send another."
        )
    return values


def band_statistics(files: Sequence[Path], *, bands: int) -> Preprocessing:
    """Return ranges, mean and deviation of every band, measured on pictures spread over `files`."""
    if not files:
        raise DataProblem("there are no training images to compute the statistics of bands from.")
    count = min(len(files), STATISTICS_FILES)
    chosen = [files[step * len(files) // count] for step in range(count)]
    samples, types = [], set()
    problem: DataProblem | None = None
    for path in chosen:
        try:
            flat = _values_of(path, bands)
        except DataProblem as damaged:  # reported where the picture is used
            problem = problem or damaged
            continue
        types.add(flat.dtype)
        samples.append(flat[:: math.ceil(len(flat) / STATISTICS_PIXELS)])
    if not samples and problem is not None:
        raise problem
    values = np.concatenate([sample.astype(np.float32) for sample in samples])
    values = values[np.isfinite(values).all(axis=1)]
    if not len(values):
        raise DataProblem(f"{chosen[0]} and others hold no finite values; check the files.")
    if types == {np.dtype(np.uint8)}:
        ranges = ((0.0, 255.0),) * bands
    else:
        low, high = np.percentile(values, TAILS, axis=0)
        high = np.maximum(high, low + np.maximum(1e-6, 1e-6 * np.abs(low)))
        ranges = tuple((float(one), float(other)) for one, other in zip(low, high, strict=True))
    scaled = scaled_bands(values[None], ranges)[0].astype(np.float64) / 255
    return Preprocessing(
        mean=tuple(scaled.mean(axis=0).tolist()),
        std=tuple(np.maximum(scaled.std(axis=0), LEAST_STD).tolist()),
        ranges=ranges,
    )


def _values_of(path: Path, bands: int) -> NDArray[Any]:
    """Return values of a picture (pixels, bands): all, or of a large one those of windows spread over it."""
    if path.suffix.lower() in (".tif", ".tiff", ".npy"):
        windows = BandWindows(path, bands=bands)
        if math.prod(windows.size) > LARGE_PIXELS:
            return np.concatenate(
                [windows.read(*place).reshape(-1, bands) for place in spread_windows(windows.size)]
            )
    return read_bands(path, bands=bands).reshape(-1, bands)


def spread_windows(size: tuple[int, int]) -> list[tuple[int, int, int, int]]:
    """Return sixteen windows (top, bottom, left, right) in a grid over a picture, for figures that need no more."""
    spans = []
    for side in size:
        room = max(0, side - WINDOW_SIDE_PIXELS)
        spans.append(
            [(room * step // 3, min(side, room * step // 3 + WINDOW_SIDE_PIXELS)) for step in range(4)]
        )
    return [(*rows, *columns) for rows in spans[0] for columns in spans[1]]


def _read_array(path: Path) -> NDArray[Any]:
    with damage(path):
        values = np.load(path, mmap_mode="r", allow_pickle=False)
        _check(values.shape if values.ndim == 3 else (*values.shape, 1), path)
        if values.ndim not in (2, 3) or values.dtype.kind not in "uif":
            raise unusable(
                f"image {path}", f"it holds {values.dtype} {values.shape}, not numbers (height, width, bands)"
            )
        return np.array(values if values.ndim == 3 else values[:, :, None])


def _values_of_picture(picture: Image.Image) -> NDArray[Any]:
    """Return PNG, JPEG and the like as PIL reads them: grey of 8 or 16 bits, or colour."""
    mode = {"1": "L", "LA": "L", "P": "RGB", "PA": "RGB", "CMYK": "RGB", "YCbCr": "RGB"}.get(picture.mode)
    values = np.asarray(picture.convert(mode) if mode else picture)
    return values if values.ndim == 3 else values[:, :, None]


def _read_tiff(stream: BinaryIO, path: Path) -> NDArray[Any]:
    """Read a TIFF in strips or tiles, of one or several planes.

    A compressed part is handed to PIL as a grey TIFF of its bytes, so that every lossless compression can be undone,
    whatever the values mean; differences between neighbours are summed up here.
    """
    with damage(path):
        layout = _layout(stream, path)
        _check((layout.height, layout.width, layout.bands), path)
        check_memory(
            layout.height * layout.width * layout.bands * (np.dtype(layout.kind).itemsize + 1),
            what=f"image {path} of {layout.bands} bands",
            remedy="Cut it first.",
        )
        return _window(layout, stream, path, (0, layout.height, 0, layout.width))


def _layout(stream: BinaryIO, path: Path) -> _TiffLayout:
    layout = _TiffLayout(*tiff_directory(stream))
    problem = layout.problem()
    if problem is not None:
        raise unusable(f"image {path}", problem, "Write it again, e.g. as .npy.")
    return layout


def _window(
    layout: _TiffLayout, stream: BinaryIO, path: Path, window: tuple[int, int, int, int]
) -> NDArray[Any]:
    """Decode the parts under a window: top, bottom, left, right."""
    top, bottom, left, right = window
    values = np.zeros((bottom - top, right - left, layout.bands), np.dtype(layout.kind))
    for index in layout.under(*window):
        if layout.lengths[index] > MAX_PART_BYTES:
            raise unusable(f"image {path}", f"its part {index} claims {layout.lengths[index]} bytes")
        stream.seek(layout.offsets[index])
        layout.put(values, index, stream.read(layout.lengths[index]), (top, left))
    return values


class BandWindows:
    """Windows of a TIFF or an array with any number of bands, values as stored."""

    def __init__(self, path: Path, *, bands: int) -> None:
        self.path, self._values, self._layout = path, None, None
        with damage(path):
            _check_regular(path)
        with damage(path), path.open("rb") as stream:
            if stream.read(6) == ARRAY_BEGIN:
                values = np.load(path, mmap_mode="r", allow_pickle=False)
                self._values = values[:, :, None] if values.ndim == 2 else values
                shape, kind = self._values.shape, self._values.dtype.kind
                if len(shape) != 3 or kind not in "uif":
                    raise unusable(f"image {path}", f"it holds {values.dtype} {values.shape}")
            else:
                self._layout = _layout(stream, path)
                shape = (self._layout.height, self._layout.width, self._layout.bands)
        _check_bands(shape[2], path)
        if shape[2] != bands:
            raise unusable(f"image {path}", f"it has {shape[2]} bands, not {bands}", "Correct `bands`.")
        if not min(shape) > 0 or max(shape) > MAX_SIDE_PIXELS:
            raise unusable(f"image {path}", f"{shape} is empty or has a side over {MAX_SIDE_PIXELS} pixels")
        self.size = (shape[0], shape[1])

    @property
    def part_pixels(self) -> int:
        """The pixels that have to be decoded for one."""
        return 1 if self._layout is None else self._layout.part_height * self._layout.part_width

    def read(self, top: int, bottom: int, left: int, right: int) -> NDArray[Any]:
        """Return the values of a window, (height, width, bands)."""
        if self._values is not None:
            return np.array(self._values[top:bottom, left:right])
        assert self._layout is not None  # one of both is there
        with damage(self.path), self.path.open("rb") as stream:
            return _window(self._layout, stream, self.path, (top, bottom, left, right))


class _TiffLayout:
    """Where the values of a TIFF are."""

    def __init__(self, order: str, fields: Fields) -> None:
        def number(tag: int, default: int) -> int:
            return field_numbers(order, fields, tag, (default,))[0]

        self.order, self.fields = order, fields
        self.height, self.width = number(HEIGHT, 0), number(WIDTH, 0)
        self.bands, self.planar = number(SAMPLES, 1), number(PLANAR, CHUNKY) != CHUNKY
        self.upright = number(ORIENTATION, UPRIGHT) == UPRIGHT
        self.predictor, self.compression = number(PREDICTOR, NO_PREDICTOR), number(COMPRESSION, UNCOMPRESSED)
        self.bits, self.form = set(field_numbers(order, fields, BITS, (1,))), number(SAMPLE_FORMAT, 1)
        self.kind = SAMPLE_TYPES.get((self.form, min(self.bits)), "")
        self.tiled = TILE_WIDTH in fields
        tags = (TILE_OFFSETS, TILE_BYTES) if self.tiled else (STRIP_OFFSETS, STRIP_BYTES)
        self.offsets, self.lengths = (field_numbers(order, fields, tag, ()) for tag in tags)
        self.part_height = (
            number(TILE_HEIGHT, 0) if self.tiled else min(number(ROWS_PER_STRIP, self.height), self.height)
        )
        self.part_width = number(TILE_WIDTH, 0) if self.tiled else self.width

    def problem(self) -> str | None:
        """Say why it cannot be read, if so."""
        if len(self.bits) != 1 or not self.kind:
            return f"its values are of {sorted(self.bits)} bits in form {self.form}"
        if self.predictor not in (NO_PREDICTOR, DIFFERENCES) or (
            self.predictor == DIFFERENCES and self.kind[0] == "f"
        ):
            return f"its predictor {self.predictor} is not supported"
        if self.compression not in LOSSLESS:
            return f"its compression {self.compression} is not a lossless one of bytes"
        if not self.upright:
            return "it is turned by its orientation field"
        if self.part_height < 1 or self.part_width < 1:
            return "its parts have no size"
        if not len(self.offsets) == len(self.lengths) == self.down * self.across * self.planes:
            return "its parts do not add up"
        return None

    @property
    def down(self) -> int:
        """The number of rows of parts."""
        return math.ceil(self.height / self.part_height)

    @property
    def across(self) -> int:
        """The number of parts in a row."""
        return math.ceil(self.width / self.part_width)

    @property
    def planes(self) -> int:
        """The number of planes that are stored one after the other."""
        return self.bands if self.planar else 1

    def put(self, values: NDArray[Any], index: int, data: bytes, origin: tuple[int, int] = (0, 0)) -> None:
        """Decode a part and put its values where they belong; `values` is the window that begins at `origin`."""
        plane, place = divmod(index, self.down * self.across)
        row, column = divmod(place, self.across)
        top, left = row * self.part_height, column * self.part_width
        height = self.part_height if self.tiled else min(self.part_height, self.height - top)
        bands = 1 if self.planar else self.bands
        part = self._decoded(data, (height, self.part_width * bands)).reshape(height, self.part_width, bands)
        if self.predictor == DIFFERENCES:
            part = np.cumsum(part, axis=1, dtype=part.dtype)
        above, before = max(0, origin[0] - top), max(0, origin[1] - left)  # what lies outside of the window
        top, left = max(0, top - origin[0]), max(0, left - origin[1])
        part = part[above:, before:]
        room = values[top : top + part.shape[0], left : left + part.shape[1]]
        first = plane if self.planar else 0
        room[:, :, first : first + bands] = part[: room.shape[0], : room.shape[1]]

    def under(self, top: int, bottom: int, left: int, right: int) -> list[int]:
        """Return the numbers of the parts under a window."""
        rows = range(top // self.part_height, math.ceil(bottom / self.part_height))
        columns = range(left // self.part_width, math.ceil(right / self.part_width))
        return [
            (plane * self.down + row) * self.across + column
            for plane in range(self.planes)
            for row in rows
            for column in columns
        ]

    def _decoded(self, data: bytes, size: tuple[int, int]) -> NDArray[Any]:
        stored = np.dtype(f"{self.order}{self.kind}")
        if self.compression != UNCOMPRESSED:
            data = self._plain_bytes(data, (size[0], size[1] * stored.itemsize))
        return np.frombuffer(data, stored, count=size[0] * size[1]).astype(self.kind)

    def _plain_bytes(self, data: bytes, size: tuple[int, int]) -> bytes:
        fields = {COMPRESSION: self.fields[COMPRESSION]}
        for tag, value in ((BITS, 8), (SAMPLES, 1), (PHOTOMETRIC, BLACK_IS_ZERO)):
            fields[tag] = (3, struct.pack(self.order + "H", value), 1)
        small = one_part_tiff(data, size, fields, self.order)
        with Image.open(BytesIO(small), formats=("TIFF",)) as picture:
            return picture.tobytes()


def _check_regular(path: Path) -> None:
    if not stat.S_ISREG(path.stat().st_mode):  # reading from a pipe might never end
        raise unusable(f"image {path}", "it is not a regular file")


def _check_bands(bands: int, path: Path) -> None:
    if not 1 <= bands <= MAX_BANDS:
        raise unusable(f"image {path}", f"it has {bands} bands; 1 to {MAX_BANDS} are read")


def _check(shape: Sequence[int], path: Path) -> None:
    _check_bands(shape[-1], path)
    if min(shape) < 1 or math.prod(shape) > MAX_VALUES:
        raise unusable(f"image {path}", f"{tuple(shape)} is empty or over the limit of {MAX_VALUES} values")

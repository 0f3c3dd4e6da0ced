"""Pictures that are read a band of rows at a time: TIFF, binary PPM and PGM, and NPY files.

Every other format is decoded whole, and is therefore bounded by `files.MAX_PIXELS`. A compressed part (a strip or a
tile) of a TIFF is handed to PIL as a small TIFF of its own, so that all compressions that PIL knows can be read, and
every part is bounded before it is decoded.
"""

from __future__ import annotations

import math
import re
import stat
import struct
import tokenize
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from segtailor.data.files import (
    MAX_PIXELS,
    RawMask,
    TooLarge,
    decode_image,
    decode_mask,
    picture_size,
    read_image,
    read_mask,
    to_rgb,
    unusable,
)

MAX_SIDE_PIXELS = 2**17  # a band of 1024 such rows takes 400 MB
LARGE_PIXELS = 2**24  # a larger picture is not decoded whole where its file can be read in parts
MAX_DIRECT_PART_PIXELS = 2**22  # of a strip or tile; larger ones would be decoded for every crop
MAX_PART_PIXELS = 2**26  # of one strip or tile, which is decoded at once
MAX_PART_BYTES = 8 * MAX_PART_PIXELS  # four channels of 16 bits
# `tokenize` is what NumPy parses the header of an array with.
DAMAGE = (
    OSError, struct.error, ValueError, OverflowError, LookupError, SyntaxError, TypeError, RecursionError,
    tokenize.TokenError,
)  # fmt: skip
MAX_FIELDS = 512  # of a TIFF directory
MAX_PARTS = 2**24  # strips or tiles of a TIFF
REMEDY = (
    "Convert it to an upright TIFF in tiles. TIFF (in strips or tiles, chunky), binary PPM and PGM, and NPY files are "
    "read in parts; the others (PNG, JPEG, WEBP, BMP, GIF, and TIFF files turned by their orientation) are "
    "decoded whole."
)
UPRIGHT = 1
CHUNKY = 1
UNCOMPRESSED = 1
# Fields of a TIFF directory.
WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC, STRIP_OFFSETS, ORIENTATION, SAMPLES = (
    256, 257, 258, 259, 262, 273, 274, 277,
)  # fmt: skip
ROWS_PER_STRIP, STRIP_BYTES, PLANAR, TILE_WIDTH, TILE_HEIGHT, TILE_OFFSETS, TILE_BYTES = (
    278, 279, 284, 322, 323, 324, 325,
)  # fmt: skip
COPIED = (
    BITS,
    COMPRESSION,
    PHOTOMETRIC,
    SAMPLES,
    317,
    320,
    338,
    339,
    347,
    530,
    532,
)  # needed to decode a part
Fields: TypeAlias = Mapping[int, tuple[int, bytes, int]]  # of a directory: type, content, number of values
Decode: TypeAlias = Callable[
    [bytes, str, tuple[int, int]], NDArray[np.uint8]
]  # of a part: content, name for messages, height and width inside of the picture
FIELD_TYPES = {1: "B", 3: "H", 4: "I", 5: "II", 7: "B", 16: "Q"}  # codes of `struct`


class Rows(Protocol):
    """An upright picture whose rows can be read without the others."""

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""

    def read(self, top: int, bottom: int) -> NDArray[np.uint8]:
        """Return the rows from `top` to before `bottom` as RGB (rows, width, 3)."""


@dataclass(frozen=True, kw_only=True)
class WholeRows:
    """A picture that is decoded already."""

    pixels: NDArray[np.uint8]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.pixels.shape[0], self.pixels.shape[1]

    def read(self, top: int, bottom: int) -> NDArray[np.uint8]:
        """Return a view of the rows."""
        return self.pixels[top:bottom]


@contextmanager
def open_rows(path: Path) -> Iterator[Rows | None]:
    """Open a picture that can be read in parts; nothing where its format or its form has to be decoded whole.

    A file that is damaged, or too large even in parts, raises `DataProblem`.
    """
    with ExitStack() as stack:
        with damage(path):
            if not stat.S_ISREG(path.stat().st_mode):  # reading from a pipe might never end
                raise unusable(f"image {path}", "it is not a regular file")
            stream = stack.enter_context(path.open("rb"))
            reader = _reader(stream.read(8))
            rows = None if reader is None else reader(stream, path)
            if rows is not None:
                _check_sides(rows.size, path)
        yield rows


@contextmanager
def damage(path: Path) -> Iterator[None]:
    """Turn what damaged files cause into one clear error."""
    try:
        yield
    except DAMAGE as problem:
        reason = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
        raise unusable(f"image {path}", str(reason).splitlines()[0].rstrip(".")) from None


def mask_blocks(path: Path) -> Iterator[RawMask]:
    """Yield the content of a mask in blocks that fit in memory; where it is not large, all of it at once."""
    size = picture_size(path)
    if size is None or math.prod(size) <= LARGE_PIXELS:
        yield read_mask(path)
        return
    if path.suffix.lower() in (".tif", ".tiff"):
        with open_rows(path) as rows:
            if isinstance(rows, TiffRows) and math.prod(rows.tile) <= MAX_DIRECT_PART_PIXELS:
                yield from rows.masks()
                return
    raw = read_mask(path)
    step = max(1, MAX_DIRECT_PART_PIXELS // size[1])
    for top in range(0, size[0], step):
        yield raw._replace(values=raw.values[top : top + step])


def decode_mask_part(data: bytes, name: str, valid: tuple[int, int]) -> RawMask:
    """Decode a part of a mask, without what lies beyond its border: values there may mean nothing."""
    raw = decode_mask(data, name=name, limit=MAX_PART_PIXELS)
    return raw._replace(values=raw.values[: valid[0], : valid[1]])


def read_whole(path: Path) -> NDArray[np.uint8]:
    """Decode a picture whole; one that is too large for that is told which formats are read in parts."""
    try:
        return read_image(path)
    except TooLarge as problem:
        text = str(problem).removesuffix("Make it smaller first.")
        raise TooLarge(f"{text}{REMEDY}") from None


def _reader(begin: bytes) -> Callable[[BinaryIO, Path], Rows | None] | None:
    if begin[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        return _open_tiff
    if begin[:2] in (b"P5", b"P6"):
        return _open_portable
    return _open_array if begin[:6] == b"\x93NUMPY" else None


def _check_sides(size: tuple[int, int], path: Path) -> None:
    if min(size) < 1 or max(size) > MAX_SIDE_PIXELS:
        raise unusable(
            f"image {path}",
            f"{size[1]}x{size[0]} is empty or has a side over {MAX_SIDE_PIXELS} pixels",
            "Cut it first.",
        )


@dataclass(frozen=True, kw_only=True)
class StoredRows:
    """Rows that lie in a file one after the other, uncompressed; grey and colour of 8 or 16 bits."""

    stream: BinaryIO
    path: Path
    size: tuple[int, int]
    channels: int
    dtype: np.dtype[Any]
    start: int
    brightest: int

    def read(self, top: int, bottom: int) -> NDArray[np.uint8]:
        """Read and convert the rows."""
        per_row = self.size[1] * self.channels * self.dtype.itemsize
        self.stream.seek(self.start + top * per_row)
        data = self.stream.read((bottom - top) * per_row)
        if len(data) != (bottom - top) * per_row:
            raise unusable(f"image {self.path}", f"it ends within row {top + len(data) // per_row}")
        values = np.frombuffer(data, self.dtype).reshape(bottom - top, self.size[1], self.channels)
        return to_rgb(values, brightest=self.brightest)


def _open_portable(stream: BinaryIO, path: Path) -> Rows | None:
    stream.seek(0)
    head = stream.read(1024)
    found = re.match(rb"P([56])(?:\s|#[^\n]*\n)+(\d{1,9})\s+(\d{1,9})\s+(\d{1,5})\s", head)
    if found is None:
        return None  # PIL says what is wrong with it
    width, height, brightest = (int(text) for text in found.groups()[1:])
    if not 1 <= brightest <= 65535:
        return None
    return StoredRows(
        stream=stream,
        path=path,
        size=(height, width),
        channels=3 if found[1] == b"6" else 1,
        dtype=np.dtype(np.uint8 if brightest < 256 else ">u2"),
        start=found.end(),
        brightest=brightest,
    )


def _open_array(stream: BinaryIO, path: Path) -> Rows | None:
    stream.seek(0)
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_columns, dtype = read(stream, max_header_size=10_000)
    channels = 1 if len(shape) == 2 else shape[2] if len(shape) == 3 else 0
    if by_columns or channels not in (1, 3) or dtype.kind != "u" or dtype.itemsize > 2:
        raise unusable(
            f"image {path}",
            f"it holds {dtype} {shape}; pictures are (height, width) or (height, width, 3) in uint8 or uint16",
        )
    return StoredRows(
        stream=stream,
        path=path,
        size=(shape[0], shape[1]),
        channels=channels,
        dtype=dtype,
        start=stream.tell(),
        brightest=255 if dtype.itemsize == 1 else 65535,
    )


def decode_image_part(data: bytes, name: str, valid: tuple[int, int]) -> NDArray[np.uint8]:
    """Decode a part of a picture as RGB, without what lies beyond the picture's border."""
    return decode_image(data, name=f"{name} (a part)", limit=MAX_PART_PIXELS)[: valid[0], : valid[1]]


@dataclass(frozen=True, kw_only=True)
class TiffRows:
    """A TIFF in strips (tiles as wide as the picture) or in tiles, of which only those under a band are decoded."""

    stream: BinaryIO
    path: Path
    size: tuple[int, int]
    tile: tuple[int, int]
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]
    fields: Fields
    order: str

    def read(self, top: int, bottom: int) -> NDArray[np.uint8]:
        """Decode the parts under the rows and put them together."""
        return self.window(top, bottom, 0, self.size[1])

    def window(
        self, top: int, bottom: int, left: int, right: int, decode: Decode = decode_image_part
    ) -> NDArray[np.uint8]:
        """Decode the parts under a window and put them together; `decode` says what a part holds."""
        height, width = self.tile
        across = math.ceil(self.size[1] / width)
        found: NDArray[np.uint8] | None = None
        for row in range(top // height, math.ceil(bottom / height)):
            first, last = max(top, row * height), min(bottom, (row + 1) * height, self.size[0])
            for column in range(left // width, math.ceil(right / width)):
                start, stop = max(left, column * width), min(right, (column + 1) * width, self.size[1])
                valid = self._valid(row, column)
                part = decode(self._part(row * across + column, row), f"{self.path}", valid)
                if found is None:
                    found = np.empty((bottom - top, right - left, *part.shape[2:]), part.dtype)
                found[first - top : last - top, start - left : stop - left] = part[
                    first - row * height : last - row * height, start - column * width : stop - column * width
                ]
        assert found is not None  # a window is never empty
        return found

    def masks(self) -> Iterator[RawMask]:
        """Decode all parts of a mask one by one."""
        across = math.ceil(self.size[1] / self.tile[1])
        for index in range(len(self.offsets)):
            row, column = divmod(index, across)
            yield decode_mask_part(self._part(index, row), f"{self.path}", self._valid(row, column))

    def _valid(self, row: int, column: int) -> tuple[int, int]:
        """Return how much of a part lies inside of the picture."""
        height, width = self.tile
        return min(height, self.size[0] - row * height), min(width, self.size[1] - column * width)

    def _part(self, index: int, row: int) -> bytes:
        """Return one strip or tile as a small TIFF; the last strip may be shorter."""
        height, width = self.tile
        if width >= self.size[1] and TILE_WIDTH not in self.fields:
            height = min(height, self.size[0] - row * height)
        if self.lengths[index] > MAX_PART_BYTES:
            raise unusable(f"image {self.path}", f"its part {index} claims {self.lengths[index]} bytes")
        with damage(self.path):
            self.stream.seek(self.offsets[index])
            data = self.stream.read(self.lengths[index])
        return one_part_tiff(data, (height, width), self.fields, self.order)


def _open_tiff(stream: BinaryIO, path: Path) -> Rows | None:
    """Open a TIFF; nothing where it has to be decoded whole: not upright, one plane per channel, no known parts."""
    order, fields = tiff_directory(stream)

    def numbers(tag: int, default: tuple[int, ...]) -> tuple[int, ...]:
        return field_numbers(order, fields, tag, default)

    def number(tag: int, default: int) -> int:
        return numbers(tag, (default,))[0]

    size = (number(HEIGHT, 0), number(WIDTH, 0))
    _check_sides(size, path)
    if number(ORIENTATION, UPRIGHT) != UPRIGHT or number(PLANAR, CHUNKY) != CHUNKY:
        return None
    tiled = TILE_WIDTH in fields
    offsets, lengths = (
        numbers(tag, ()) for tag in ((TILE_OFFSETS, TILE_BYTES) if tiled else (STRIP_OFFSETS, STRIP_BYTES))
    )
    height = number(TILE_HEIGHT, 0) if tiled else min(number(ROWS_PER_STRIP, size[0]), size[0])
    width = number(TILE_WIDTH, 0) if tiled else size[1]
    if height < 1 or width < 1:
        return None
    wanted = math.ceil(size[0] / height) * math.ceil(size[1] / width)
    if not len(offsets) == len(lengths) == wanted:
        return None
    bits = numbers(BITS, (1,))
    if not tiled and number(COMPRESSION, UNCOMPRESSED) == UNCOMPRESSED and bits[0] % 8 == 0:
        sample_bytes = width * number(SAMPLES, 1) * bits[0] // 8
        height, offsets, lengths = _shorter_strips(size[0], height, offsets, sample_bytes)
    if height * width > MAX_PART_PIXELS:
        if size[0] * size[1] <= MAX_PIXELS:
            return None
        raise unusable(
            f"image {path}",
            f"its parts of {width}x{height} are over the limit of {MAX_PART_PIXELS} pixels each",
            "Write it again in tiles of 512x512.",
        )
    return TiffRows(
        stream=stream,
        path=path,
        size=size,
        tile=(height, width),
        offsets=offsets,
        lengths=lengths,
        fields=fields,
        order=order,
    )


def _shorter_strips(
    picture: int, height: int, offsets: tuple[int, ...], row_bytes: int
) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Divide uncompressed strips of many rows: any part of them can be read. Return height, offsets and lengths."""
    short = math.gcd(height, 2**8) if height > 2**8 else height
    if len(offsets) == 1 and height > 2**8:
        short = 2**8
    starts, lengths = [], []
    for strip, offset in enumerate(offsets):
        rows = min(height, picture - strip * height)
        for first in range(0, rows, short):
            starts.append(offset + first * row_bytes)
            lengths.append(min(short, rows - first) * row_bytes)
    return short, tuple(starts), tuple(lengths)


def tiff_directory(stream: BinaryIO) -> tuple[str, dict[int, tuple[int, bytes, int]]]:
    """Read the first directory of a TIFF or BigTIFF: byte order, and type, content and count by field."""
    stream.seek(0)
    head = stream.read(16)
    order = "<" if head[:2] == b"II" else ">"
    big = head[2:4] in (b"+\0", b"\0+")
    start = struct.unpack_from(order + ("Q" if big else "I"), head, 8 if big else 4)[0]
    stream.seek(start)
    (count,) = struct.unpack(order + ("Q" if big else "H"), stream.read(8 if big else 2))
    if count > MAX_FIELDS:
        raise ValueError(f"its directory claims {count} fields")
    record, inline = (20, 8) if big else (12, 4)
    table = stream.read(count * record)
    fields = {}
    for index in range(count):
        tag, kind, values = struct.unpack_from(order + ("HHQ" if big else "HHI"), table, index * record)
        if kind not in FIELD_TYPES or values > MAX_PARTS:
            continue  # of no meaning for the pixels, or not to be trusted
        nbytes = values * struct.calcsize(order + FIELD_TYPES[kind])
        place = index * record + record - inline
        if nbytes <= inline:
            content = table[place : place + nbytes]
        else:
            stream.seek(struct.unpack_from(order + ("Q" if big else "I"), table, place)[0])
            content = stream.read(nbytes)
        if len(content) != nbytes:
            raise ValueError("it ends within its directory")
        fields[tag] = (kind, content, values)
    return order, fields


def field_numbers(order: str, fields: Fields, tag: int, default: tuple[int, ...]) -> tuple[int, ...]:
    """Return the numbers in a field of a directory, or `default` where it is missing."""
    if tag not in fields:
        return default
    kind, content, count = fields[tag]
    return struct.unpack(f"{order}{count}{FIELD_TYPES[kind]}", content)


def one_part_tiff(data: bytes, size: tuple[int, int], fields: Fields, order: str) -> bytes:
    """Return a TIFF whose only strip is a part of another one."""

    def long(value: int) -> tuple[int, bytes, int]:
        return 4, struct.pack(order + "I", value), 1

    chosen = {tag: fields[tag] for tag in COPIED if tag in fields}
    chosen |= {WIDTH: long(size[1]), HEIGHT: long(size[0]), ROWS_PER_STRIP: long(size[0])}
    chosen |= {STRIP_BYTES: long(len(data)), STRIP_OFFSETS: long(0)}
    after = 8 + 2 + 12 * len(chosen) + 4
    extra = b""
    content_start = after + sum(len(content) + len(content) % 2 for _, content, _ in chosen.values())
    chosen[STRIP_OFFSETS] = long(content_start)
    entries = b""
    for tag, (kind, content, count) in sorted(chosen.items()):
        if len(content) > 4:
            value = struct.pack(order + "I", after + len(extra))
            extra += content + b"\0" * (len(content) % 2)
        else:
            value = content.ljust(4, b"\0")
        entries += struct.pack(order + "HHI", tag, kind, count) + value
    extra = extra.ljust(content_start - after, b"\0")
    head = (b"II" if order == "<" else b"MM") + struct.pack(order + "HI", 42, 8)
    return b"".join(
        (head, struct.pack(order + "H", len(chosen)), entries, struct.pack(order + "I", 0), extra, data)
    )

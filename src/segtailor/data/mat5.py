"""Whole numbers from small MATLAB files of version 5, e.g. the lists of splits that come with benchmarks.

Only plain real matrices are read, by name; other content is passed over. Sizes are checked before anything is unpacked,
and nothing in such a file is executed.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segtailor.core.errors import DataProblem
from segtailor.data.files import read_bytes

MAX_FILE_BYTES = 2**24
MAX_UNPACKED_BYTES = 2**26
HEADER_BYTES, TAG_BYTES = 128, 8
MATRIX, COMPRESSED = 14, 15  # types of elements
NUMBER_FORMATS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}


def read_whole_numbers(path: Path, names: tuple[str, ...]) -> dict[str, NDArray[np.int64]]:
    """Return the named matrices as flat arrays of whole numbers; names that the file lacks are left out."""
    content = read_bytes(path, most=MAX_FILE_BYTES, what="MATLAB file")
    if len(content) < HEADER_BYTES or content[126:128] not in (b"IM", b"MI"):
        raise DataProblem(f"{path} is no MATLAB file of version 5 or 7.3; fetch it again, or leave it out.")
    order = "<" if content[126:128] == b"IM" else ">"
    found: dict[str, NDArray[np.int64]] = {}
    try:
        for kind, body in _elements(content[HEADER_BYTES:], order):
            if kind == COMPRESSED:
                body = _unpacked(body, path)
                kind, body = next(_elements(body, order), (0, b""))
            if kind == MATRIX:
                name, values = _matrix(body, order)
                if name in names:
                    found[name] = _whole(values, name, path)
    except (struct.error, zlib.error, ValueError, UnicodeDecodeError) as problem:
        raise DataProblem(f"{path} cannot be read as a MATLAB file: {problem}. Fetch it again.") from None
    return found


def _elements(content: bytes, order: str) -> Iterator[tuple[int, bytes]]:
    """Yield type and bytes of each element; small ones hold their bytes in the tag."""
    place = 0
    while place + TAG_BYTES <= len(content):
        kind, size = struct.unpack_from(f"{order}II", content, place)
        if kind >> 16:  # both in one word
            kind, size = kind & 0xFFFF, kind >> 16
            if size > 4:
                raise ValueError(f"a small element of {size} bytes")
            yield kind, content[place + 4 : place + 4 + size]
            place += TAG_BYTES
            continue
        place += TAG_BYTES
        if size > len(content) - place:
            raise ValueError(f"an element of {size} bytes where {len(content) - place} are left")
        yield kind, content[place : place + size]
        place += size if kind == COMPRESSED else -(-size // 8) * 8


def _unpacked(body: bytes, path: Path) -> bytes:
    unpacker = zlib.decompressobj()
    plain = unpacker.decompress(body, MAX_UNPACKED_BYTES)
    if unpacker.unconsumed_tail:
        raise DataProblem(
            f"{path} unpacks to more than {MAX_UNPACKED_BYTES} bytes; that is no list of splits."
        )
    return plain


def _matrix(body: bytes, order: str) -> tuple[str, NDArray[np.float64] | None]:
    """Return the name and the values of a matrix; None where it is not one of plain numbers."""
    parts = list(_elements(body, order))
    if len(parts) < 4:
        return "", None
    name = parts[2][1].decode("ascii")
    dimensions = np.frombuffer(parts[1][1], dtype=f"{order}i4").astype(np.int64).tolist()
    kind, numbers = parts[3]
    if kind not in NUMBER_FORMATS:
        return name, None
    values = np.frombuffer(numbers, dtype=f"{order}{NUMBER_FORMATS[kind]}").astype(np.float64)
    if min(dimensions, default=0) < 0 or math.prod(dimensions) != len(values):
        raise ValueError(f"matrix '{name}' of {dimensions} with {len(values)} numbers")
    return name, values


def _whole(values: NDArray[np.float64] | None, name: str, path: Path) -> NDArray[np.int64]:
    if values is None or not np.isfinite(values).all() or (values != np.round(values)).any():
        raise DataProblem(f"{path}: '{name}' does not hold whole numbers; fetch the file again.")
    if len(values) and np.abs(values).max() > 2**53:
        raise DataProblem(f"{path}: '{name}' holds numbers that are too large; fetch the file again.")
    return values.astype(np.int64)

"""PNG files written row by row: a picture of any size without holding it in memory."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from segtailor.core.atomic import new_file
from segtailor.core.ownership import MARK

COMPRESSION_LEVEL = 3  # of zlib, as for other results
MAX_CHUNK_BYTES = 2**20
MODES = {"L": 0, "RGB": 2, "P": 3}  # colour types of the format
Mode: TypeAlias = Literal["L", "RGB", "P"]


class RowWriter:
    """Adds rows, from top to bottom, to a PNG file that is being written."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._packer = zlib.compressobj(COMPRESSION_LEVEL)
        self._waiting = b""

    def add(self, rows: NDArray[np.uint8]) -> None:
        """Add rows (rows, width) or (rows, width, 3)."""
        flat = rows.reshape(len(rows), -1)
        filtered = np.zeros((len(flat), flat.shape[1] + 1), np.uint8)  # each row begins with its filter: none
        filtered[:, 1:] = flat
        self._emit(self._packer.compress(filtered.data))

    def finish(self) -> None:
        """Write what is left and the end of the file."""
        self._emit(self._packer.flush())
        if self._waiting:
            _chunk(self._stream, b"IDAT", self._waiting)
        _chunk(self._stream, b"IEND", b"")

    def _emit(self, data: bytes) -> None:
        self._waiting += data
        while len(self._waiting) >= MAX_CHUNK_BYTES:
            _chunk(self._stream, b"IDAT", self._waiting[:MAX_CHUNK_BYTES])
            self._waiting = self._waiting[MAX_CHUNK_BYTES:]


@contextmanager
def png_rows(
    path: Path, size: tuple[int, int], mode: Mode, palette: Sequence[int] = ()
) -> Iterator[RowWriter]:
    """Yield a writer of the rows of a PNG (height, width); the file appears when all of them are written."""
    with new_file(path, what="prediction") as temporary, temporary.open("wb") as stream:
        stream.write(b"\x89PNG\r\n\x1a\n")
        _chunk(stream, b"IHDR", struct.pack(">IIBBBBB", size[1], size[0], 8, MODES[mode], 0, 0, 0))
        if mode == "P":
            _chunk(stream, b"PLTE", bytes(palette))
        _chunk(stream, b"tEXt", b"Software\0" + MARK.encode())
        writer = RowWriter(stream)
        yield writer
        writer.finish()


def _chunk(stream: BinaryIO, kind: bytes, body: bytes) -> None:
    stream.write(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(body, zlib.crc32(kind)))
    )

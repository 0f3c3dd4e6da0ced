"""Which files this program wrote. They contain a mark; other files are replaced only with --force."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

from segtailor.core.codec import read_json
from segtailor.core.errors import UserError

MARK = "made by segtailor"  # in images, drawings, videos and archives
MARK_BYTES = 4096  # the mark of a text file lies within its first bytes
JSON_LIMIT_BYTES = 256 * 2**20

IsOurs: TypeAlias = Callable[[Path], bool]


class ForeignFile(UserError):
    """A file that would be replaced, but was not written by this program."""


def refuse_overwrite(paths: Iterable[tuple[Path, IsOurs]], *, force: bool) -> None:
    """Raise `ForeignFile`, before any work, if a file that exists is not ours; with `force` it may be replaced."""
    existing = [
        (path, is_ours)
        for path, is_ours in paths
        if os.path.lexists(path) and (is_ours is is_frames or not path.is_dir())  # no file replaces a folder
    ]
    others = [] if force else [path for path, is_ours in existing if not _recognised(path, is_ours)]
    if others:
        more = f" (and {len(others) - 1} more)" if len(others) > 1 else ""
        raise ForeignFile(
            f"{others[0]}{more} is there already and was not written by segtailor, so it stays as it is. Choose "
            "another name, move it away, or add --force to replace it."
        )


def contains_mark(mark: bytes, *, begins: bytes = b"", within: int | None = None) -> IsOurs:
    """Recognise files that start with `begins` and contain `mark`: in the first `within` bytes, or anywhere."""

    def ours(path: Path) -> bool:
        if not path.is_file() or path.stat().st_size == 0:
            return False
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[: len(begins)].lower() != begins.lower():
                return False
            return data.find(mark, 0, len(data) if within is None else within) >= 0

    return ours


def has_fields(*fields: str) -> IsOurs:
    """Recognise files with a JSON object that has certain fields."""

    def ours(path: Path) -> bool:
        try:
            document = read_json(path, what="file", limit=JSON_LIMIT_BYTES)
        except UserError:
            return False
        return isinstance(document, dict) and set(fields) <= set(document)

    return ours


def has_marked_neighbour(name: str, ours: IsOurs) -> IsOurs:
    """Recognise files that cannot contain a mark by a marked file of that name in the same folder."""
    return lambda path: path.is_file() and ours(path.with_name(name))


def marked_svg(text: str) -> str:
    """Return an SVG document with the mark after its first tag."""
    head, end, rest = text.partition(">")
    return f"{head}{end}<!-- {MARK} -->{rest}"


is_page = contains_mark(
    b'<meta name="generator" content="segtailor">', begins=b"<!doctype html>", within=MARK_BYTES
)
is_drawing = contains_mark(f"<!-- {MARK} -->".encode(), begins=b"<svg ", within=MARK_BYTES)
is_picture = contains_mark(MARK.encode())  # of any format, also a video; the mark may be anywhere


def is_frames(folder: Path) -> bool:
    """Recognise a folder that contains only images of ours."""
    if not folder.is_dir() or folder.is_symlink():
        return False
    return all(path.suffix == ".png" and is_picture(path) for path in folder.iterdir())


def _recognised(path: Path, ours: IsOurs) -> bool:
    try:
        return ours(path)
    except OSError:  # not readable
        return False

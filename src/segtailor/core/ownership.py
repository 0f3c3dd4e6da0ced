"""Whose a file is: what this program writes for its user bears a mark; the rest is replaced only by --force."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

from segtailor.core.codec import read_json
from segtailor.core.errors import UserError

MARK = "made by segtailor"  # in pictures, drawings, videos and archives
HEAD = 4096  # bytes of a text file within which its mark is
JSON_LIMIT = 256 * 2**20

Ours: TypeAlias = Callable[[Path], bool]


class Foreign(UserError):
    """A file that is in the way and that this program did not write."""


def spare(paths: Iterable[tuple[Path, Ours]], *, force: bool) -> None:
    """Refuse to replace files that are not ours, before any work; `force` is the user's word that they may go."""
    there = [(path, ours) for path, ours in paths if os.path.lexists(path)]
    there = [
        (path, ours) for path, ours in there if ours is is_frames or not path.is_dir()
    ]  # no file replaces one
    others = [] if force else [path for path, ours in there if not _recognised(path, ours)]
    if others:
        more = f" (and {len(others) - 1} more)" if len(others) > 1 else ""
        raise Foreign(
            f"{others[0]}{more} is there already and was not written by segtailor, so it stays as it is. Choose "
            "another name, move it away, or add --force to replace it."
        )


def bears(mark: bytes, *, begins: bytes = b"", within: int | None = None) -> Ours:
    """Recognise files that hold `mark`, in their first bytes or anywhere, and begin in a certain way."""

    def ours(path: Path) -> bool:
        if not path.is_file() or path.stat().st_size == 0:
            return False
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[: len(begins)].lower() != begins.lower():
                return False
            return data.find(mark, 0, len(data) if within is None else within) >= 0

    return ours


def holds(*fields: str) -> Ours:
    """Recognise JSON objects that have certain fields."""

    def ours(path: Path) -> bool:
        try:
            found = read_json(path, what="file", limit=JSON_LIMIT)
        except UserError:
            return False
        return isinstance(found, dict) and set(fields) <= set(found)

    return ours


def beside(name: str, ours: Ours) -> Ours:
    """Recognise files that bear no mark themselves by one that lies beside them."""
    return lambda path: path.is_file() and ours(path.with_name(name))


def marked_svg(text: str) -> str:
    """Return an SVG document with the mark behind its first tag."""
    head, end, rest = text.partition(">")
    return f"{head}{end}<!-- {MARK} -->{rest}"


is_page = bears(b'<meta name="generator" content="segtailor">', begins=b"<!doctype html>", within=HEAD)
is_drawing = bears(f"<!-- {MARK} -->".encode(), begins=b"<svg ", within=HEAD)
is_picture = bears(MARK.encode())  # of any format, video included; where the mark lies differs


def is_frames(folder: Path) -> bool:
    """Recognise a folder that holds nothing but pictures of ours."""
    if not folder.is_dir() or folder.is_symlink():
        return False
    return all(path.suffix == ".png" and is_picture(path) for path in folder.iterdir())


def _recognised(path: Path, ours: Ours) -> bool:
    try:
        return ours(path)
    except OSError:  # not ours to read, so hardly ours
        return False

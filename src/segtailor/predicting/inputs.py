"""What the user named, as a list of inputs: pictures, folders, patterns, videos, cameras."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Literal, TypeAlias

from segtailor.core.errors import DataProblem, UserError
from segtailor.data.files import PICTURE_SUFFIXES, list_pictures

IMAGES = PICTURE_SUFFIXES | {".webp", ".gif", ".ppm", ".pgm", ".jfif"}
VIDEOS = frozenset(
    {".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".ts", ".mts", ".wmv", ".flv", ".ogv", ".3gp"}
)  # fmt: skip
WILD = "*?["
Kind: TypeAlias = Literal["image", "video", "camera"]


@dataclass(frozen=True, kw_only=True)
class Input:
    """One picture, video or camera. `place` is its name below the output folder, without a suffix."""

    kind: Kind
    path: Path
    place: PurePath
    camera: int = 0

    @property
    def text(self) -> str:
        """How messages name it."""
        return f"camera {self.camera}" if self.kind == "camera" else str(self.path)


def expand(texts: Sequence[str], *, out: Path) -> tuple[list[Input], list[tuple[str, str]]]:
    """Return the inputs in the order given, each file once, and a (text, problem) for every text without any.

    Files below `out` are left out of folders and patterns: they are results of an earlier call.
    """
    inputs: dict[object, Input] = {}
    problems: list[tuple[str, str]] = []
    for text in texts:
        try:
            for found in _inputs(text, out.resolve()):
                key = found.camera if found.kind == "camera" else found.path.resolve()
                inputs.setdefault(key, found)
        except (UserError, OSError, RuntimeError, ValueError) as problem:  # a path can be wrong in many ways
            problems.append((text, str(problem)))
    return list(inputs.values()), problems


def _inputs(text: str, out: Path) -> Iterator[Input]:
    path = Path(text).expanduser()
    if path.is_dir():
        if path.resolve().is_relative_to(out):
            raise UserError(f"folder {path} is where the results go; choose another one with --out.")
        found = list(_below(path, out))
        if not found:
            raise DataProblem(f"folder {path} holds no pictures or videos; name another one, or the files.")
        yield from found
    elif path.exists() or path.is_symlink():
        yield _file(path)
    elif text.isascii() and text.isdecimal():
        index = int(text)
        yield Input(kind="camera", path=Path(), place=PurePath(f"camera{index}"), camera=index)
    elif any(sign in text for sign in WILD):
        yield from _matching(str(path), out)
    else:
        raise DataProblem(
            f"{text} does not exist. Give a picture, a folder, a pattern, a video or a camera number."
        )


def _matching(pattern: str, out: Path) -> Iterator[Input]:
    matches = [Path(match) for match in sorted(glob.glob(pattern, recursive=True))]  # noqa: PTH207 - patterns may be absolute
    found: list[Input] = []
    for path in matches:
        if path.is_dir() and "**" not in pattern:  # "**" lists what is inside by itself
            found += _below(path, out)
        elif path.suffix.lower() in IMAGES | VIDEOS and not path.is_dir() and not _inside(path, out):
            found.append(_file(path))
    if not found:
        raise DataProblem(f"no picture or video matches '{pattern}'; check the pattern.")
    yield from found


def _below(folder: Path, out: Path) -> Iterator[Input]:
    for path in list_pictures(folder, IMAGES | VIDEOS):
        if not _inside(path, out):
            yield _file(path, below=folder)


def _inside(path: Path, out: Path) -> bool:
    return path.parent.resolve().is_relative_to(out)  # not the file: it may be a link to elsewhere


def _file(path: Path, below: Path | None = None) -> Input:
    kind: Kind = "video" if path.suffix.lower() in VIDEOS else "image"
    return Input(
        kind=kind, path=path, place=PurePath(path.name if below is None else path.relative_to(below))
    )

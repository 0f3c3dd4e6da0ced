"""What the user named, as a list of inputs (pictures, folders, patterns, videos, cameras), and where each result goes.

A result has the name of its input. It never replaces another result or an input.
"""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Literal, TypeAlias

from segtailor.core.errors import DataProblem, UserError
from segtailor.core.ownership import is_frames, is_picture, refuse_overwrite
from segtailor.data.files import PICTURE_SUFFIXES, list_pictures
from segtailor.tasks import Form

IMAGES = PICTURE_SUFFIXES | {".webp", ".gif", ".ppm", ".pgm", ".jfif", ".npy"}
VIDEOS = frozenset(
    {".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".ts", ".mts", ".wmv", ".flv", ".ogv", ".3gp"}
)  # fmt: skip
WILDCARDS = "*?["
Kind: TypeAlias = Literal["image", "video", "camera"]


@dataclass(frozen=True, kw_only=True)
class Input:
    """One picture, video or camera. `place` is its path below the folder that the user named, or its name."""

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
            for item in _inputs(text, out.resolve()):
                key = item.camera if item.kind == "camera" else item.path.resolve()
                inputs.setdefault(key, item)
        except (UserError, OSError, RuntimeError, ValueError) as problem:  # the system cannot use every path
            problems.append((text, str(problem)))
    return list(inputs.values()), problems


def destinations(inputs: Sequence[Input], out: Path, form: Form) -> list[Path]:
    """Return one path per input: a PNG for a picture, an MP4 for moving ones, or a folder of PNGs for their ids.

    Results with the same name get the name of the input's folder in front, then the input's suffix, then a number.
    """
    names = [_name(item, form, 0) for item in inputs]
    for level in (1, 2):
        times = Counter(_folded(name) for name in names)
        names = [
            _name(item, form, level) if times[_folded(name)] > 1 else name
            for item, name in zip(inputs, names, strict=True)
        ]
    paths = [out / name for name in _numbered(names)]
    _spare_inputs(inputs, paths)
    return paths


def spare_others(
    inputs: Sequence[Input],
    paths: Sequence[Path],
    form: Form,
    *,
    force: bool,
    beside: Sequence[Path] = (),
) -> None:
    """Refuse to replace files, and folders of frames, that this program did not write; `beside` are more pictures."""
    folders = [form == "ids" and item.kind != "image" for item in inputs]
    kinds = [is_frames if folder else is_picture for folder in folders]
    _spare_inputs(inputs, beside)
    results = {_folded(path) for path in paths}
    for path in beside:
        if _folded(path) in results:
            raise UserError(
                f"two results would be called {path}; label the inputs in two calls with another --out."
            )
    refuse_overwrite([*zip(paths, kinds, strict=True), *((path, is_picture) for path in beside)], force=force)


def _inputs(text: str, out: Path) -> Iterator[Input]:
    path = Path(text).expanduser()
    if path.is_dir():
        if path.resolve().is_relative_to(out):
            raise UserError(f"folder {path} is where the results go; choose another one with --out.")
        inside = list(_below(path, out))
        if not inside:
            raise DataProblem(f"folder {path} holds no pictures or videos; name another one, or the files.")
        yield from inside
    elif path.exists() or path.is_symlink():
        yield _file(path)
    elif text.isascii() and text.isdecimal():
        index = int(text)
        yield Input(kind="camera", path=Path(), place=PurePath(f"camera{index}"), camera=index)
    elif any(sign in text for sign in WILDCARDS):
        yield from _matching(str(path), out)
    else:
        raise DataProblem(
            f"{text} does not exist. Give a picture, a folder, a pattern, a video or a camera number."
        )


def _matching(pattern: str, out: Path) -> Iterator[Input]:
    matches = [Path(match) for match in sorted(glob.glob(pattern, recursive=True))]  # noqa: PTH207 - patterns may be absolute
    inputs: list[Input] = []
    for path in matches:
        if path.is_dir() and "**" not in pattern:  # "**" lists the content of folders itself
            inputs += _below(path, out)
        elif path.suffix.lower() in IMAGES | VIDEOS and not path.is_dir() and not _inside(path, out):
            inputs.append(_file(path))
    if not inputs:
        raise DataProblem(f"no picture or video matches '{pattern}'; check the pattern.")
    yield from inputs


def _below(folder: Path, out: Path) -> Iterator[Input]:
    for path in list_pictures(folder, IMAGES | VIDEOS):
        if not _inside(path, out):
            yield _file(path, below=folder)


def _inside(path: Path, out: Path) -> bool:
    return path.parent.resolve().is_relative_to(
        out
    )  # the folder, because the file may be a link to elsewhere


def _file(path: Path, below: Path | None = None) -> Input:
    kind: Kind = "video" if path.suffix.lower() in VIDEOS else "image"
    place = PurePath(path.name if below is None else path.relative_to(below))
    return Input(kind=kind, path=path, place=place)


def _name(item: Input, form: Form, level: int) -> PurePath:
    """Return the result's name: 0 short, 1 with the folder's name, 2 with folder and suffix."""
    place, folder = item.place, item.path.absolute().parent.name
    stem = place.name if level == 2 or item.kind == "camera" else place.stem
    front = f"{folder}-" if level and folder and item.kind != "camera" else ""
    ending = ".png" if item.kind == "image" else "" if form == "ids" else ".mp4"
    return place.with_name(f"{front}{stem}{ending}")


def _numbered(names: Sequence[PurePath]) -> list[PurePath]:
    """Make names unique by numbers; the first of its kind keeps its name."""
    wanted = {_folded(name) for name in names}
    given: set[str] = set()
    unique = []
    for name in names:
        chosen, number = name, 1
        while _folded(chosen) in given or (number > 1 and _folded(chosen) in wanted):
            number += 1
            chosen = name.with_name(f"{name.stem}-{number}{name.suffix}")
        given.add(_folded(chosen))
        unique.append(chosen)
    return unique


def _folded(name: PurePath | Path) -> str:
    return str(name).casefold()  # on some file systems a.png and A.png are the same file


def _spare_inputs(inputs: Sequence[Input], paths: Sequence[Path]) -> None:
    sources = {item.path.resolve() for item in inputs if item.kind != "camera"}
    for path in paths:
        if path.resolve() in sources:
            raise UserError(f"the result {path} would replace an input; choose another folder with --out.")

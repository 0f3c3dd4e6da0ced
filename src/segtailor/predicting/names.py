"""Where each result goes: named like its input, and never onto another result or onto an input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePath

from segtailor.core.errors import UserError
from segtailor.core.ownership import is_frames, is_picture, refuse_overwrite
from segtailor.predicting.inputs import Input
from segtailor.predicting.painting import Form


def destinations(inputs: Sequence[Input], out: Path, form: Form) -> list[Path]:
    """Return one path per input: a PNG for a picture, an MP4 for moving ones, or a folder of PNGs for their ids.

    Results named alike get the name of the input's folder in front, then keep its suffix, then a number.
    """
    names = [_name(item, form, 0) for item in inputs]
    for level in (1, 2):
        alike = Counter(_folded(name) for name in names)
        names = [
            _name(item, form, level) if alike[_folded(name)] > 1 else name
            for item, name in zip(inputs, names, strict=True)
        ]
    paths = [out / name for name in _numbered(names)]
    _spare_inputs(inputs, paths)
    return paths


def spare_others(inputs: Sequence[Input], paths: Sequence[Path], form: Form, *, force: bool) -> None:
    """Refuse to replace files, and folders of frames, that are no results of ours."""
    folders = [form == "ids" and item.kind != "image" for item in inputs]
    kinds = [is_frames if folder else is_picture for folder in folders]
    refuse_overwrite(zip(paths, kinds, strict=True), force=force)


def _name(item: Input, form: Form, level: int) -> PurePath:
    """Return the result's name: 0 short, 1 with the folder's name, 2 with folder and suffix."""
    place, folder = item.place, item.path.absolute().parent.name
    stem = place.name if level == 2 or item.kind == "camera" else place.stem
    front = f"{folder}-" if level and folder and item.kind != "camera" else ""
    ending = ".png" if item.kind == "image" else "" if form == "ids" else ".mp4"
    return place.with_name(f"{front}{stem}{ending}")


def _numbered(names: Sequence[PurePath]) -> list[PurePath]:
    """Make names unique by numbers; the first of its kind keeps its name."""
    taken = {_folded(name) for name in names}
    seen: set[str] = set()
    unique = []
    for name in names:
        chosen, number = name, 1
        while _folded(chosen) in seen or (number > 1 and _folded(chosen) in taken):
            number += 1
            chosen = name.with_name(f"{name.stem}-{number}{name.suffix}")
        seen.add(_folded(chosen))
        unique.append(chosen)
    return unique


def _folded(name: PurePath) -> str:
    return str(name).casefold()  # some file systems do not tell a.png from A.png


def _spare_inputs(inputs: Sequence[Input], paths: Sequence[Path]) -> None:
    sources = {item.path.resolve() for item in inputs if item.kind != "camera"}
    for path in paths:
        if path.resolve() in sources:
            raise UserError(f"the result {path} would replace an input; choose another folder with --out.")

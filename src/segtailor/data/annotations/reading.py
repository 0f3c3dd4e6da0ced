"""What a reader of annotation files returns, and what all readers need: names, numbers, splits, pictures on disk."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from segtailor.core.codec import short
from segtailor.core.errors import DataProblem
from segtailor.data.annotations.shapes import MAX_COORDINATE, AnnotatedPicture, LabelShape, Points, ShapeFault
from segtailor.data.dataset import Severity
from segtailor.data.files import PICTURE_SUFFIXES, list_pictures
from segtailor.data.splits import COMMON_NAMES

Unlabelled: TypeAlias = Literal["background", "ignore"]
MAX_JSON_BYTES = 512 * 2**20  # COCO's instances of 2017 have 449 million
MAX_NAME_CHARACTERS = 200  # of a class
WITH_WEBP = PICTURE_SUFFIXES | {".webp"}


class AnnotationProblem(NamedTuple):
    """One problem of annotation files. `image` is the picture concerned, which can be left out by its name."""

    severity: Severity
    kind: str
    file: str
    message: str
    fix: str
    image: Path | None = None


@dataclass(frozen=True)
class Catching:
    """A context that hands over a `DataProblem` and goes on after its block."""

    note: Callable[[DataProblem], None]

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> bool:
        """Take a `DataProblem`; other exceptions pass."""
        if not isinstance(problem, DataProblem):
            return False
        self.note(problem)
        return True


@dataclass(kw_only=True)
class AnnotationReading:
    """Everything that the files of a dataset say: classes in label order, pictures, problems.

    `unlabelled` is what the format means by pixels without annotation.
    """

    root: Path
    classes: list[str] = field(default_factory=list)
    pictures: list[AnnotatedPicture] = field(default_factory=list)
    problems: list[AnnotationProblem] = field(default_factory=list)
    unlabelled: Unlabelled = "background"
    _not_drawn: Counter[tuple[Path, str]] = field(default_factory=Counter)

    def report(
        self,
        kind: str,
        file: Path,
        message: str,
        fix: str,
        *,
        severity: Severity = "error",
        image: Path | None = None,
    ) -> None:
        """Note a problem."""
        self.problems.append(AnnotationProblem(severity, kind, str(file), message, fix, image))

    def catching(self, file: Path, who: str, image: Path | None = None) -> Catching:
        """Turn a `DataProblem` of one annotation into a problem of the reading, and go on."""

        def note(problem: DataProblem) -> None:
            kind = problem.kind if isinstance(problem, ShapeFault) else "annotation"
            where = "" if image is None else f" of {image.name}"
            message = f"{file}: {who}{where}: {str(problem).rstrip('.')}"
            self.report(kind, file, message, "Correct or remove this annotation.", image=image)

        return Catching(note)

    def opening(self, file: Path) -> Catching:
        """Turn a `DataProblem` of a whole file into a problem of the reading, and go on with the next file."""

        def note(problem: DataProblem) -> None:
            text = str(problem)
            message = text if str(file) in text else f"{file}: {text}"
            self.report("malformed", file, message.rstrip("."), "Export it again, or remove it.")

        return Catching(note)

    def learn(self, names: Iterable[str]) -> None:
        """Add classes that are not known yet."""
        self.classes[:] = dict.fromkeys([*self.classes, *names])

    def add(self, picture: AnnotatedPicture) -> None:
        """Add a picture; one without a file is reported instead."""
        if picture.image.is_file():
            self.pictures.append(picture)
            return
        self.report(
            "missing-image",
            picture.file,
            f"{picture.file} names {picture.image}, which does not exist",
            "Add the picture, or remove its annotations.",
            image=picture.image,
        )

    def leave_out(self, file: Path, what: str) -> None:
        """Count something that is not drawn."""
        self._not_drawn[file, what] += 1

    def finish(self) -> AnnotationReading:
        """Report what was not drawn, one line per file and kind."""
        for (file, what), count in self._not_drawn.items():
            self.report(
                "not-drawn",
                file,
                f"{file} holds {count} of: {what}; they enclose no area and are not drawn",
                "Nothing to do, unless they are meant as areas: draw polygons or masks then.",
                severity="info",
            )
        self._not_drawn.clear()
        return self


@dataclass(frozen=True)
class PictureIndex:
    """The pictures below a folder, by name: annotation files often name them by another path."""

    root: Path

    @cached_property
    def _by_name(self) -> dict[str, list[Path]]:
        table: dict[str, list[Path]] = {}
        for path in list_pictures(self.root, WITH_WEBP):
            table.setdefault(path.name, []).append(path)
        return table

    def find(self, name: Any, folders: Sequence[Path] = (), *, anywhere: bool = True) -> Path:
        """Return the file that a name stands for: below one of the folders, or (`anywhere`) the only one of that name.

        A name that leads nowhere returns where it was expected; one that leaves the root raises `DataProblem`.
        """
        place = relative(name)
        for folder in (*folders, self.root):
            if (folder / place).is_file():
                return folder / place
        same = self._by_name.get(place.name, []) if anywhere else []
        if len(same) == 1:
            return same[0]
        return next((folder for folder in folders if folder.is_dir()), self.root) / place


def relative(name: Any) -> PurePosixPath:
    """Return the path that an annotation file names; absolute ones and those that lead upwards raise `DataProblem`."""
    if not isinstance(name, str) or not name.strip() or "\0" in name or len(name) > 1000:
        raise DataProblem(f"{short(name)} is not the name of a picture")
    place = PurePosixPath(name.replace("\\", "/"))
    if place.is_absolute() or ".." in place.parts or re.match(r"[A-Za-z]:", name) or not place.name:
        raise DataProblem(f"picture {short(name)} does not lie below the dataset's folder")
    return place


def inside(place: Path, root: Path) -> bool:
    """Tell whether a path stays below a folder, links not followed."""
    return Path(os.path.normpath(place.absolute())).is_relative_to(os.path.normpath(root.absolute()))


def split_of(words: Iterable[str]) -> str:
    """Return the first split that is among the parts of a path or name; empty if none is."""
    return next((COMMON_NAMES[word.lower()] for word in words if word.lower() in COMMON_NAMES), "")


def class_name(value: Any) -> str:
    """Return the name of a class, or raise `DataProblem`."""
    text = (
        " ".join(str(value).split()) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    )
    if not text or len(text) > MAX_NAME_CHARACTERS:
        raise DataProblem(f"{short(value)} is not the name of a class")
    return text


def known_class(value: Any, classes: Iterable[str]) -> str:
    """Return the name of a class that the file declares, or raise `ShapeFault`."""
    name = class_name(value)
    if name not in classes:
        raise ShapeFault("unknown-category", f"its class {short(name)} is not among the declared ones")
    return name


def number(value: Any, what: str, *, most: float = MAX_COORDINATE) -> float:
    """Return a finite number within bounds, given as a number or as text, or raise `DataProblem`."""
    try:
        result = (
            float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
        )
    except (ValueError, OverflowError):
        result = math.nan
    if not -most <= result <= most:  # not-a-number is refused too
        raise DataProblem(f"{what} is {short(value)}, not a number between {-most:g} and {most:g}")
    return result


def whole(value: Any, what: str) -> int:
    """Return a whole number within bounds, or raise `DataProblem`."""
    result = number(value, what)
    if result != int(result):
        raise DataProblem(f"{what} is {short(value)}, not a whole number")
    return int(result)


def stated_size(height: Any, width: Any) -> tuple[int, int] | None:
    """Return height and width as a file states them; nothing where it does not."""
    if height is None or width is None:
        return None
    size = whole(height, "the height of the picture"), whole(width, "the width of the picture")
    if min(size) < 1:
        raise DataProblem(f"the picture is stated as {size[1]}x{size[0]} pixels")
    return size


def points_of(flat: Sequence[Any]) -> Points:
    """Return coordinates x, y, x, y, ... as points (n, 2), or raise `DataProblem`."""
    try:
        values = np.array(flat, dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        raise DataProblem(f"its coordinates {short(flat)} are not all numbers") from None
    if values.ndim != 1 or len(values) % 2:
        raise DataProblem(f"its coordinates {short(flat)} are not pairs of numbers")
    if not (np.abs(values) <= MAX_COORDINATE).all():  # not-a-number is refused too
        raise DataProblem(f"a coordinate is not finite, or beyond {MAX_COORDINATE:g}")
    return values.reshape(-1, 2)


def pairs_of(rows: Any) -> Points:
    """Return coordinates [[x, y], ...] as points (n, 2), or raise `DataProblem`."""
    if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) == 2 for row in rows):
        raise DataProblem(f"its points {short(rows)} are not pairs of numbers")
    return points_of([value for row in rows for value in row])


def shape_list(shapes: Iterable[LabelShape | None]) -> tuple[LabelShape, ...]:
    """Return the shapes that are drawn."""
    return tuple(shape for shape in shapes if shape is not None)

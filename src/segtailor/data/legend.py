"""What the values in masks mean. A `Legend` lists the classes, a `LabelMap` turns ids or colours into labels.

Labels are 0 to classes - 1, and 255 for pixels that do not count. A legend is read from classes.yaml, palette.json, or
lines `name`, `name 128 64 128` or `128 64 128 name` in classes.txt or label_colors.txt:

classes:                            # classes.yaml
  - road                            # short form: the id is the position in this list
  - {name: car, id: 13, colour: [0, 0, 142]}
ignore: [255, "#000000"]            # ids and colours that do not count
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from segtailor.core.codec import fingerprint, from_json, read_json, short
from segtailor.core.errors import DataProblem
from segtailor.core.task import IGNORE, Colour, Task
from segtailor.data.files import RawMask, colours_of, read_text, read_yaml

CLASS_LIST_FILES = ("classes.yaml", "classes.yml", "classes.txt", "palette.json", "label_colors.txt")
MAX_CLASS_LIST_BYTES = 2**20
MaskValue: TypeAlias = int | str | Colour  # an id, or a colour as three numbers or '#rrggbb'
_REFUSED = -1  # marks ids without a label


@dataclass(frozen=True, kw_only=True)
class LegendClass:
    """One class: its name, its ids in index masks (by default its position) and its colour in colour masks."""

    name: str
    ids: tuple[int, ...] = ()
    colour: Colour | None = None


@dataclass(frozen=True, kw_only=True)
class Legend:
    """All classes in label order, and what is ignored: the given ids and colours, and 255 unless a class uses it."""

    classes: tuple[LegendClass, ...]
    ignore_ids: tuple[int, ...] = ()
    ignore_colours: tuple[Colour, ...] = ()

    @property
    def task(self) -> Task:
        """Names and colours for a network."""
        colours = tuple(row.colour for row in self.classes if row.colour is not None)
        complete = len(colours) == len(self.classes)
        return Task(classes=tuple(row.name for row in self.classes), palette=colours if complete else ())

    def ignoring(self, values: Iterable[MaskValue]) -> Legend:
        """Return a legend that also ignores these ids and colours."""
        ids, colours = list(self.ignore_ids), list(self.ignore_colours)
        for value in values:
            if isinstance(value, int) or (isinstance(value, str) and re.fullmatch(r"\d{1,9}", value)):
                ids.append(int(value))
            else:
                colours.append(parse_colour(value))
        return replace(self, ignore_ids=tuple(ids), ignore_colours=tuple(colours))

    def label_map(self, *, ignore_others: bool = False, by_colour: bool = False) -> LabelMap:
        """Return the tables that read masks; an id or colour of two classes raises `DataProblem`."""
        ids: dict[int, int] = {}
        colours: dict[Colour, int] = {}
        for label, row in enumerate(self.classes):
            for value in row.ids or (label,):
                _claim(ids, value, label)
            if row.colour is not None:
                _claim(colours, row.colour, label)
        for value in self.ignore_ids:
            ids[value] = IGNORE  # also where it is the position of a class
        for colour in self.ignore_colours:
            _claim(colours, colour, IGNORE)
        ids.setdefault(IGNORE, IGNORE)
        return LabelMap(
            ids=ids,
            colours=colours,
            ignore_other_ids=ignore_others,
            ignore_other_colours=ignore_others,
            by_colour=by_colour,
        )


@dataclass(frozen=True, kw_only=True)
class LabelMap:
    """Tables from ids and from colours to labels; values in neither table are refused or ignored.

    With `by_colour`, files with a palette are read as colours instead of indices.
    """

    ids: Mapping[int, int] = field(default_factory=dict)
    colours: Mapping[Colour, int] = field(default_factory=dict)
    ignore_other_ids: bool = False
    ignore_other_colours: bool = False
    by_colour: bool = False

    @cached_property
    def fingerprint(self) -> str:
        """Changes whenever the same file would give other labels."""
        return fingerprint(
            [
                sorted(self.ids.items()),
                sorted((list(colour), label) for colour, label in self.colours.items()),
                [self.ignore_other_ids, self.ignore_other_colours, self.by_colour],
            ]
        )

    def apply(self, raw: RawMask, path: Path) -> NDArray[np.uint8]:
        """Return the labels of a mask; `path` is for messages."""
        colours = colours_of(raw) if raw.coloured or self.by_colour else None
        if colours is None:
            return self._from_ids(raw.values, path)
        if self.colours:
            return self._from_colours(colours, path)
        if (colours == colours[:, :, :1]).all():  # greyscale ids saved as RGB
            return self._from_ids(colours[:, :, 0], path)
        raise DataProblem(
            f"mask {path} holds colours, but no palette is known. Give one colour per class "
            "(option palette=..., or a classes.yaml beside the images)."
        )

    def _from_ids(self, values: NDArray[np.generic], path: Path) -> NDArray[np.uint8]:
        if values.dtype == np.uint8:
            table, inverse = self._id_table, values
        else:
            found, inverse = np.unique(values, return_inverse=True)
            table = np.array([self._label_of(int(value)) for value in found], dtype=np.int16)
        labels: NDArray[np.int16] = table[inverse.reshape(values.shape)]
        if (labels == _REFUSED).any():
            raise self._refused_ids(values[labels == _REFUSED], path)
        return labels.astype(np.uint8)

    @cached_property
    def _id_table(self) -> NDArray[np.int16]:
        return np.array([self._label_of(value) for value in range(256)], dtype=np.int16)

    def _label_of(self, value: int) -> int:
        return self.ids.get(value, IGNORE if self.ignore_other_ids else _REFUSED)

    def _refused_ids(self, values: NDArray[np.generic], path: Path) -> DataProblem:
        strange = [int(value) for value in np.unique(values)[:5]]
        known = sorted(self.ids)
        span = f"{known[0]}..{known[-1]}" if len(known) == known[-1] - known[0] + 1 else _enumerated(known)
        return DataProblem(
            f"mask {path} holds class id {_enumerated(strange)}; the dataset's ids are {span}. "
            "Correct the mask, give more classes, or name the id as ignored."
        )

    def _from_colours(self, colours: NDArray[np.uint8], path: Path) -> NDArray[np.uint8]:
        keys, values = self._colour_table
        packed = pack_colours(colours)
        rows = np.minimum(np.searchsorted(keys, packed), len(keys) - 1)
        known = keys[rows] == packed
        labels = np.where(known, values[rows], np.uint8(IGNORE))
        if not self.ignore_other_colours and not known.all():
            strange = [unpack_colour(int(key)) for key in np.unique(packed[~known])[:3]]
            raise DataProblem(
                f"mask {path} holds colours that belong to no class, e.g. {strange[0]}. "
                "Add them to the palette, list them as ignored, or give others=ignore."
            )
        return labels.astype(np.uint8, copy=False)

    @cached_property
    def _colour_table(self) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
        rows = sorted((pack_colour(colour), label) for colour, label in self.colours.items())
        keys, values = zip(*rows, strict=True)
        return np.array(keys, dtype=np.uint32), np.array(values, dtype=np.uint8)


def read_legend(path: Path) -> Legend:
    """Read a class list; the suffix of the file tells which of the three forms it has. Errors name the file."""
    if path.suffix == ".json":
        legend = _from_palette(
            read_json(path, what="palette", error=DataProblem, limit=MAX_CLASS_LIST_BYTES), path
        )
    elif path.suffix in (".yaml", ".yml"):
        legend = _from_document(read_yaml(path, what="class list"), path)
    else:
        text = read_text(path, what="class list", limit=MAX_CLASS_LIST_BYTES)
        lines = [line.strip() for line in text.splitlines()]
        legend = _from_lines([line for line in lines if line and not line.startswith("#")], path)
    try:
        legend.task  # noqa: B018 - raises on duplicate, missing and unprintable names
        legend.label_map()
    except DataProblem as problem:
        raise DataProblem(f"class list {path}: {problem}") from None
    return legend


def parse_colour(value: MaskValue) -> Colour:
    """Return a colour from three numbers or `#rrggbb` (the `#` may be missing)."""
    if isinstance(value, str) and re.fullmatch(r"#?[0-9a-fA-F]{6}", value):
        number = int(value.removeprefix("#"), 16)
        return number >> 16, number >> 8 & 255, number & 255
    if isinstance(value, tuple | list) and len(value) == 3 and all(map(_is_channel, value)):
        red, green, blue = (int(channel) for channel in value)
        return red, green, blue
    raise DataProblem(f"{short(value)} is not a colour; write three numbers from 0 to 255 or '#rrggbb'.")


def numbered_names(count: int) -> tuple[str, ...]:
    """Return names for classes without one: class0, class1, ..."""
    return tuple(f"class{index}" for index in range(count))


def pack_colour(colour: Colour) -> int:
    """Return a colour as one number."""
    red, green, blue = colour
    return red << 16 | green << 8 | blue


def unpack_colour(key: int) -> Colour:
    """Return the colour of a packed number."""
    return key >> 16, key >> 8 & 255, key & 255


def pack_colours(colours: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return colours (..., 3) as one number per pixel."""
    wide = colours.astype(np.uint32)
    return (wide[..., 0] << 16 | wide[..., 1] << 8 | wide[..., 2]).astype(np.uint32, copy=False)


def _is_channel(value: object) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 <= value <= 255 and float(value).is_integer()  # type: ignore[operator,arg-type]


@dataclass(frozen=True, kw_only=True)
class _Row:
    name: str
    id: int | tuple[int, ...] = ()
    colour: MaskValue | None = None


@dataclass(frozen=True, kw_only=True)
class _Document:
    classes: tuple[_Row | str, ...]
    ignore: tuple[MaskValue, ...] = ()


def _from_document(data: Any, path: Path) -> Legend:
    if isinstance(data, list):
        data = {"classes": data}
    rows = data.get("classes") if isinstance(data, dict) else None
    if isinstance(rows, list):
        data = {**data, "classes": [_british(row) for row in rows]}
    document = from_json(_Document, data, what=f"class list {path}", error=DataProblem)
    classes = []
    for row in document.classes:
        if isinstance(row, str):
            classes.append(LegendClass(name=row))
        else:
            ids = (row.id,) if isinstance(row.id, int) else row.id
            colour = None if row.colour is None else _colour_of(row.name, row.colour, path)
            classes.append(LegendClass(name=row.name, ids=ids, colour=colour))
    try:
        return Legend(classes=tuple(classes)).ignoring(document.ignore)
    except DataProblem as problem:
        raise DataProblem(f"class list {path}, ignore: {problem}") from None


def _colour_of(name: str, value: Any, path: Path) -> Colour:
    try:
        return parse_colour(value)
    except DataProblem as problem:
        raise DataProblem(f"class list {path}, class {name[:60]!a}: {problem}") from None


def _british(row: Any) -> Any:
    """Accept the American spelling of colour."""
    if isinstance(row, dict) and "color" in row and "colour" not in row:
        return {("colour" if key == "color" else key): value for key, value in row.items()}
    return row


def _from_palette(data: Any, path: Path) -> Legend:
    """Read `{"road": [128, 64, 128], ...}` or `[[128, 64, 128], ...]`."""
    if isinstance(data, dict) and data:
        named = data.items()
    elif isinstance(data, list) and data:
        named = dict(zip(numbered_names(len(data)), data, strict=True)).items()
    else:
        raise DataProblem(f"palette {path} must map class names to colours or list colours.")
    return Legend(
        classes=tuple(LegendClass(name=name, colour=_colour_of(name, colour, path)) for name, colour in named)
    )


def _from_lines(lines: list[str], path: Path) -> Legend:
    """Read a class per line: `road`, `road 128 64 128` or `128 64 128 road`."""
    classes = []
    for line in lines:
        cells = [cell for cell in re.split(r"[,\s]+", line) if cell]
        name, colour = line, None
        for channels, rest in ((cells[:3], cells[3:]), (cells[-3:], cells[:-3])):
            if rest and all(re.fullmatch(r"\d{1,9}", cell) for cell in channels):
                name = " ".join(rest)
                colour = _colour_of(name, [int(cell) for cell in channels], path)
        classes.append(LegendClass(name=name, colour=colour))
    return Legend(classes=tuple(classes))


def _claim(table: dict[Any, int], key: Any, label: int) -> None:
    if table.setdefault(key, label) != label:
        raise DataProblem(
            f"{key} stands for two classes ({table[key]} and {label}); give each its own value."
        )


def _enumerated(values: list[int]) -> str:
    head = ", ".join(str(value) for value in values[:8])
    return head if len(values) <= 8 else f"{head}, ... {values[-1]}"

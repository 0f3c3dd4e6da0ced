"""From the ids or colours in a mask file to labels: 0 .. classes-1, and 255 for pixels that do not count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segtailor.core.codec import fingerprint
from segtailor.core.errors import DataProblem
from segtailor.core.task import IGNORE, Colour
from segtailor.data.files import RawMask, colours_of

_REFUSED = -1


@dataclass(frozen=True, kw_only=True)
class LabelMap:
    """Which label each id and each colour of the files means; what is in neither table is refused or ignored.

    With `by_colour`, palette files are read as the colours they show instead of as indices.
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
        place = np.minimum(np.searchsorted(keys, packed), len(keys) - 1)
        known = keys[place] == packed
        labels = np.where(known, values[place], np.uint8(IGNORE))
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


def _enumerated(values: list[int]) -> str:
    head = ", ".join(str(value) for value in values[:8])
    return head if len(values) <= 8 else f"{head}, ... {values[-1]}"

"""Finds the classes of a folder without a class list: reads ids and colours of its masks and makes a legend of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from segtailor.core.errors import DataProblem
from segtailor.core.task import IGNORE
from segtailor.data.files import RawMask, colours_of
from segtailor.data.legend import Legend, LegendClass, numbered_names, pack_colours, unpack_colour
from segtailor.data.parts import mask_blocks

MAX_MASKS = 1000  # masks read, evenly spread: enough to see every class, limited on large datasets
MAX_COLOURS = 255
MAX_ID_GAP = 16  # unused ids in a row; more means that the values are not class numbers


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The ids and packed colours found in masks; `coloured` where ids alone do not identify the classes.

    `palette` holds the colour that files with a palette use for each id.
    """

    ids: frozenset[int] = frozenset()
    colours: frozenset[int] = frozenset()
    coloured: bool = False
    palette: Mapping[int, int] = field(default_factory=dict)

    def joined(self, other: Survey) -> Survey:
        """Return the union of two surveys. An id with two colours means one palette per file: only colours identify."""
        clash = any(other.palette.get(value, colour) != colour for value, colour in self.palette.items())
        return Survey(
            ids=self.ids | other.ids,
            colours=self.colours | other.colours,
            coloured=self.coloured or other.coloured or clash,
            palette={**self.palette, **other.palette},
        )


class MaskProblem(DataProblem):
    """The classes cannot be derived from the values of the masks."""


def masks_to_survey(masks: Sequence[Path]) -> Sequence[Path]:
    """Return the masks that are read: at most `MAX_MASKS`, evenly spread."""
    return masks[:: -(-len(masks) // MAX_MASKS) or 1]


def survey(masks: Sequence[Path]) -> Survey:
    """Read up to `MAX_MASKS` masks. Unreadable ones are skipped (the doctor reports them) unless all are unreadable."""
    result = Survey()
    problems: list[DataProblem] = []
    readable = 0
    with ThreadPoolExecutor(4, thread_name_prefix="survey") as pool:
        for outcome in pool.map(_glance, masks_to_survey(masks)):
            if isinstance(outcome, DataProblem):
                problems.append(outcome)
                continue
            readable += 1
            result = result.joined(outcome)
    if problems and not readable:
        raise problems[0]
    return result


def legend_of(found: Survey, *, by_colour: bool, ignored: Legend) -> Legend:
    """Return a legend of numbered classes for the ids or colours found, without those that `ignored` ignores."""
    if by_colour:
        if len(found.colours) > MAX_COLOURS:
            raise MaskProblem(
                f"the masks hold more than {MAX_COLOURS} colours. Are they masks? JPEG adds colours: "
                "save them as PNG, or give a palette and others=ignore."
            )
        colours = [unpack_colour(key) for key in sorted(found.colours)]
        colours = [colour for colour in colours if colour not in ignored.ignore_colours]
        names = numbered_names(len(colours))
        classes = tuple(LegendClass(name=n, colour=c) for n, c in zip(names, colours, strict=True))
    else:
        ids = sorted(found.ids - set(ignored.ignore_ids) - {IGNORE})
        _check_ids(ids)
        classes = tuple(LegendClass(name=name) for name in numbered_names(ids[-1] + 1 if ids else 0))
    if not classes:
        raise MaskProblem(
            f"every pixel of every mask is ignored ({IGNORE}), so there is nothing to learn. "
            "If 255 marks the object in 0/255 masks give binary=true; otherwise check the masks."
        )
    return Legend(classes=classes, ignore_ids=ignored.ignore_ids, ignore_colours=ignored.ignore_colours)


def strange_ids(ids: Sequence[int]) -> frozenset[int]:
    """Return those of some sorted ids that cannot be class numbers: out of range, or after a long gap."""
    strange = {value for value in ids if not 0 <= value < IGNORE}
    usual = [value for value in ids if value not in strange]
    for before, after in zip([-1, *usual], usual, strict=False):
        if after - before - 1 > MAX_ID_GAP:
            strange |= {value for value in usual if value >= after}
            break
    return frozenset(strange)


def _check_ids(ids: list[int]) -> None:
    strange = sorted(strange_ids(ids))
    if not strange:
        return
    if strange[0] < 0 or strange[-1] >= IGNORE:
        beyond = strange[0] if strange[0] < 0 else strange[-1]
        raise MaskProblem(f"masks hold id {beyond}; class ids go from 0 to {IGNORE - 1}. Renumber the masks.")
    after = strange[0]
    before = max((value for value in ids if value < after), default=-1)
    raise MaskProblem(
        f"masks hold class id {after}, but no id between {before} and {after} (found: "
        f"{', '.join(map(str, ids[:12]))}). If {after} means unlabelled give ignore={after}; "
        f"if the ids are right list the classes (classes.yaml) or give count={after + 1}."
    )


def _glance(path: Path) -> Survey | DataProblem:
    found = Survey()
    try:
        for raw in mask_blocks(path):
            found = found.joined(_seen(raw))
    except DataProblem as problem:
        return problem
    return found


def _seen(raw: RawMask) -> Survey:
    channel = raw.values[:, :, 0] if raw.coloured else raw.values
    ids = [int(value) for value in np.unique(channel)]
    colours = colours_of(raw)
    shown = (
        [] if colours is None else [int(key) for key in np.unique(pack_colours(colours))[: MAX_COLOURS + 1]]
    )
    table = [] if raw.palette is None else pack_colours(raw.palette).tolist()
    return Survey(
        ids=frozenset(ids),
        colours=frozenset(shown),
        coloured=raw.coloured and bool((raw.values != raw.values[:, :, :1]).any()),
        palette={value: table[value] for value in ids if value < len(table)},
    )

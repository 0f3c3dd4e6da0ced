"""Anyone's images and masks: parallel folders or list files, masks of ids, palettes or colours.

Layouts: `images/` beside `masks/` (each with or without `train`, `val`, `test` inside); `train/images` beside
`train/masks`; `train.txt`, `val.txt` with an image and a mask per line; or one such list file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from segtailor.core.errors import DataProblem
from segtailor.core.task import IGNORE, Task
from segtailor.data.checks.findings import Severity
from segtailor.data.dataset import DATASETS
from segtailor.data.labels import LabelMap
from segtailor.data.layout import WHOLE, FolderLayout
from segtailor.data.legend import FILES, Legend, LegendClass, Value, numbered, parse_colour, read_legend
from segtailor.data.pairs import FileDataset, Pairing, divided
from segtailor.data.survey import legend_of, survey

VAL_SHARE = 0.2


@DATASETS.register("folder")
@dataclass(frozen=True, kw_only=True)
class Folder(FileDataset):
    """Images and masks below one folder, or in one list file.

    Classes come from `classes` (names), `count`, `palette` (one colour per class), a `legend` file, a
    classes.yaml, classes.txt or palette.json in the folder, or else from the masks themselves.
    `ignore` adds ids and colours that do not count; `others` says what to do with values of no class;
    `binary` reads 0/255 masks as two classes. Where files are not divided, `val` and `test` are drawn by `seed`.
    """

    images: str | None = None
    masks: str | None = None
    classes: tuple[str, ...] = ()
    count: int | None = None
    palette: tuple[str | tuple[int, int, int], ...] = ()
    legend: Path | None = None
    ignore: tuple[Value, ...] = ()
    binary: bool = False
    encoding: Literal["auto", "index", "colour"] = "auto"
    others: Literal["refuse", "ignore"] = "refuse"
    val: float | None = None
    test: float | None = None
    seed: int = 0

    @property
    def task(self) -> Task:
        """Classes as given or found."""
        return self._meaning[0].task

    @cached_property
    def labels(self) -> LabelMap:
        """What the values in mask files mean."""
        legend, by_colour = self._meaning
        return legend.label_map(ignore_others=self.others == "ignore", by_colour=by_colour)

    def find(self) -> Mapping[str, Pairing]:
        """Look the files up and divide them where they are not divided yet."""
        found = self._layout.find()
        for split, share in (("val", self.val), ("test", self.test)):
            if split in found and share is not None:
                raise DataProblem(f"{self.path} has its own split '{split}'; leave out {split}={share:g}.")
        if WHOLE in found:
            return self._divided(found[WHOLE], val=VAL_SHARE if self.val is None else self.val)
        if "train" in found and (self.val or self.test):
            return {**found, **self._divided(found["train"], val=self.val or 0.0)}
        return found

    def problems(self) -> tuple[tuple[Severity, str, str, str, str], ...]:
        """Name what lies beside the folders of the splits."""
        message = "this lies beside the folders of the splits and is not used"
        fix = "Move it into one of them, or away."
        return tuple(("warning", "unused", str(path), message, fix) for path in self._layout.unused())

    @property
    def _layout(self) -> FolderLayout:
        return FolderLayout(path=self.path, images=self.images, masks=self.masks)

    def _divided(self, whole: Pairing, *, val: float) -> dict[str, Pairing]:
        return divided(whole, where=self.path, val=val, test=self.test or 0.0, seed=self.seed)

    @cached_property
    def _meaning(self) -> tuple[Legend, bool]:
        """The legend, and whether palette files are read by colour."""
        by_colour = self.encoding == "colour"
        given = self._given()
        if given is not None:
            return given.ignoring(self.ignore), by_colour
        if not any(pairing.pairs for pairing in self.pairings.values()):
            next(iter(self.pairings.values())).complete(self.path)
        found = survey([mask for pairing in self.pairings.values() for _, mask in pairing.pairs.values()])
        by_colour = by_colour or (self.encoding == "auto" and found.coloured)
        ignored = Legend(classes=()).ignoring(self.ignore)
        return legend_of(found, by_colour=by_colour, ignored=ignored), by_colour

    def _given(self) -> Legend | None:
        if self.classes or self.palette or self.count is not None:
            return self._from_options()
        root = self.path if self.path.is_dir() else self.path.parent
        listed = self.legend or next((root / name for name in FILES if (root / name).is_file()), None)
        if listed is not None:
            return read_legend(listed)
        return self._from_options() if self.binary else None

    def _from_options(self) -> Legend:
        if self.count is not None and not 1 <= self.count <= IGNORE:
            raise DataProblem(f"count={self.count} is no number of classes; give 1 to {IGNORE}.")
        colours = tuple(parse_colour(colour) for colour in self.palette)
        default = ("background", "foreground") if self.binary else numbered(self.count or len(colours))
        names = self.classes or default
        expected = {len(colours) or None, self.count, 2 if self.binary else None} - {None}
        if expected - {len(names)} or not names:
            raise DataProblem(
                f"classes, palette, count and binary disagree: {len(names)} names, {len(colours)} colours, "
                f"count {self.count}, binary {self.binary}. Give as many of each."
            )
        ids: tuple[tuple[int, ...], ...] = ((0,), (1, 255)) if self.binary else ((),) * len(names)
        rows = zip(names, ids, colours or (None,) * len(names), strict=True)
        return Legend(
            classes=tuple(LegendClass(name=name, ids=own, colour=colour) for name, own, colour in rows)
        )

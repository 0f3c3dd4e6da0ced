"""A user's own images and masks: how they are found in folders or list files, and which classes they show.

Layouts: `images/` beside `masks/` (each with or without `train`, `val`, `test` inside); `train/images` beside
`train/masks`; `train.txt`, `val.txt` with an image and a mask per line (`default.txt` for a set that is not divided);
one such list file; or photos (JPEG) and masks (PNG) of the same names in one folder. Masks hold ids, palette indices
or colours.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from segtailor.core.errors import DataProblem
from segtailor.core.ranges import check_whole
from segtailor.core.task import IGNORE, MAX_BANDS, Preprocessing, Task
from segtailor.data.bands import band_statistics
from segtailor.data.dataset import Severity
from segtailor.data.files import list_folders, list_pictures
from segtailor.data.legend import (
    CLASS_LIST_FILES,
    LabelMap,
    Legend,
    LegendClass,
    MaskValue,
    numbered_names,
    parse_colour,
    read_legend,
)
from segtailor.data.pairs import (
    DEFAULT_VAL_SHARE,
    FileDataset,
    Pairing,
    PairingProblem,
    divide_pairing,
    pair_folders,
)
from segtailor.data.splits import COMMON_NAMES, read_list
from segtailor.data.survey import legend_of, survey

IMAGE_FOLDERS = ("images", "image", "imgs", "img", "jpegimages", "inputs", "image_2")
MASK_FOLDERS = (
    "masks",
    "mask",
    "labels",
    "label",
    "annotations",
    "annotation",
    "gt",
    "segmentation",
    "targets",
    "semantic",
)
PHOTO_SUFFIXES = (".jpg", ".jpeg")  # of photos beside masks: never those of a mask, which JPEG would damage
UNDIVIDED = ""  # the key of a set that is not divided into splits
UNDIVIDED_LIST = "default.txt"  # as annotation tools call the list of such a set
SPLIT_ORDER = ("train", "val", "test")


@dataclass(frozen=True, kw_only=True)
class Folder(FileDataset):
    """Images and masks below one folder, or in one list file.

    Classes come from `classes` (names), `count`, `palette` (one colour per class), a `legend` file, a
    classes.yaml, classes.txt or palette.json in the folder, or else from the masks themselves.
    `ignore` adds ids and colours that do not count; `others` says what to do with values of no class;
    `binary` reads 0/255 masks as two classes. Where files are not divided, `val` and `test` are drawn by `seed`.
    With `bands`, images have that many (TIFF, NPY, grey; 8 to 32 bits) and are scaled by statistics of the data.
    """

    images: str | None = None
    masks: str | None = None
    classes: tuple[str, ...] = ()
    count: int | None = None
    palette: tuple[str | tuple[int, int, int], ...] = ()
    legend: Path | None = None
    ignore: tuple[MaskValue, ...] = ()
    binary: bool = False
    encoding: Literal["auto", "index", "colour"] = "auto"
    others: Literal["refuse", "ignore"] = "refuse"
    val: float | None = None
    test: float | None = None
    seed: int = 0
    bands: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bands is not None:
            check_whole("bands", self.bands, least=1, most=MAX_BANDS)

    @cached_property
    def preprocessing(self) -> Preprocessing | None:
        """Ranges, mean and deviation of all bands, computed from the training images; None for colour images."""
        if self.bands is None:
            return None
        split = "train" if "train" in self.splits else self.splits[0]
        files = [image for image, _ in self.pairings[split].complete(self.path).values()]
        return band_statistics(files, bands=self.bands)

    @property
    def task(self) -> Task:
        """Classes as given, or as found in the masks."""
        return self._meaning[0].task

    @cached_property
    def labels(self) -> LabelMap:
        """What the values in mask files mean."""
        legend, by_colour = self._meaning
        return legend.label_map(ignore_others=self.others == "ignore", by_colour=by_colour)

    def find(self) -> Mapping[str, Pairing]:
        """Find the files, and divide them into splits where they are not divided yet."""
        found = self._layout.find()
        for split, share in (("val", self.val), ("test", self.test)):
            if split in found and share is not None:
                raise DataProblem(f"{self.path} has its own split '{split}'; leave out {split}={share:g}.")
        if UNDIVIDED in found:
            return self._divided(found[UNDIVIDED], val=DEFAULT_VAL_SHARE if self.val is None else self.val)
        if "train" in found and (self.val or self.test):
            return {**found, **self._divided(found["train"], val=self.val or 0.0)}
        return found

    def problems(self) -> tuple[tuple[Severity, str, str, str, str], ...]:
        """Report files and folders beside the folders of the splits."""
        message = "this lies beside the folders of the splits and is not used"
        fix = "Move it into one of them, or away."
        return tuple(("warning", "unused", str(path), message, fix) for path in self._layout.unused())

    @property
    def _layout(self) -> FolderLayout:
        return FolderLayout(path=self.path, images=self.images, masks=self.masks)

    def _divided(self, whole: Pairing, *, val: float) -> dict[str, Pairing]:
        return divide_pairing(whole, where=self.path, val=val, test=self.test or 0.0, seed=self.seed)

    @cached_property
    def _meaning(self) -> tuple[Legend, bool]:
        """The legend, and whether files with a palette are read by colour."""
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
        listed = self.legend or next(
            (root / name for name in CLASS_LIST_FILES if (root / name).is_file()), None
        )
        if listed is not None:
            return read_legend(listed)
        return self._from_options() if self.binary else None

    def _from_options(self) -> Legend:
        if self.count is not None and not 1 <= self.count <= IGNORE:
            raise DataProblem(f"count={self.count} is not a number of classes; give 1 to {IGNORE}.")
        colours = tuple(parse_colour(colour) for colour in self.palette)
        default = ("background", "foreground") if self.binary else numbered_names(self.count or len(colours))
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


@dataclass(frozen=True, kw_only=True)
class FolderLayout:
    """Where images and masks lie below `path`, a folder or one list file.

    `images` and `masks` name the two folders; without them `image_folders` and `mask_folders` are tried in order.
    """

    path: Path
    images: str | None = None
    masks: str | None = None
    image_folders: tuple[str, ...] = IMAGE_FOLDERS
    mask_folders: tuple[str, ...] = MASK_FOLDERS

    @property
    def root(self) -> Path:
        """The folder that relative names start from."""
        return self.path if self.path.is_dir() else self.path.parent

    def find(self) -> dict[str, Pairing]:
        """Return the files of each split; those of a set without splits under the key `UNDIVIDED`."""
        if self.path.is_file():
            return {UNDIVIDED: self._listed(self.path)}
        lists = {
            split: path
            for name, split in COMMON_NAMES.items()
            for suffix in (".txt", ".csv")
            if (path := self.path / f"{name}{suffix}").is_file()
        }
        if lists:
            return {split: self._listed(path) for split, path in lists.items()}
        if (self.path / UNDIVIDED_LIST).is_file():
            return {UNDIVIDED: self._listed(self.path / UNDIVIDED_LIST)}
        both = self._image_and_mask(self.path)
        if both is not None:
            return self._splits_inside(*both)
        side_by_side = self._side_by_side()
        return self._splits_outside() if side_by_side is None else {UNDIVIDED: side_by_side}

    def _side_by_side(self) -> Pairing | None:
        """Photos and masks of the same names in the folder itself."""
        if self.images is not None or self.masks is not None:
            return None
        here = [path for path in list_pictures(self.path) if path.parent == self.path]
        photos = {path.stem: path for path in here if path.suffix.lower() in PHOTO_SUFFIXES}
        masks = {path.stem: path for path in here if path.suffix.lower() == ".png"}
        if not photos.keys() & masks.keys():
            return None
        return Pairing(
            pairs={name: (photo, masks[name]) for name, photo in photos.items() if name in masks},
            images_alone=tuple(photo for name, photo in photos.items() if name not in masks),
            masks_alone=tuple(mask for name, mask in masks.items() if name not in photos),
        )

    def _splits_outside(self) -> dict[str, Pairing]:
        """`train/images` beside `train/masks`."""
        places = _split_folders(self.path)
        found = {
            split: pair_folders(*both, prefix=f"{place.name}/")
            for split, place in places.items()
            if (both := self._image_and_mask(place)) is not None
        }
        if not found:
            raise self._strange()
        return found

    def _splits_inside(self, images: Path, masks: Path) -> dict[str, Pairing]:
        """`images/train` beside `masks/train`, or a set without splits."""
        places, mask_places = _split_folders(images), _split_folders(masks)
        if not _divides(images, places):
            return {UNDIVIDED: pair_folders(images, masks)}
        found = {
            split: pair_folders(place, mask_places[split], prefix=f"{place.name}/")
            for split, place in places.items()
            if split in mask_places
        }
        for split, place in places.items():
            if split not in mask_places and split != "test":  # test splits often come without masks
                message = f"{place} has no folder of masks inside {masks}; add it."
                found[split] = Pairing(
                    pairs={}, images_alone=list_pictures(place), wrong=(PairingProblem(place, message),)
                )
        return found

    def unused(self) -> tuple[Path, ...]:
        """Return files and folders beside the folders of the splits: nothing reads them."""
        both = None if self.path.is_file() else self._image_and_mask(self.path)
        if both is None or not _divides(both[0], _split_folders(both[0])):
            return ()
        known = COMMON_NAMES.keys()
        folders = [place for place in list_folders(both[0]) if place.name.lower() not in known]
        return (*folders, *(path for path in list_pictures(both[0]) if path.parent == both[0]))

    def _listed(self, path: Path) -> Pairing:
        """Read a list file: image and mask per line, or one name that the folders hold.

        Where other lines name a mask, a line with an image alone is an image without a mask.
        """
        rows = read_list(path)
        columns = {len(row) for row in rows}
        known: Mapping[str, tuple[Path, Path]] = {}
        if 1 in columns:
            try:
                known = self._by_name()
            except DataProblem:
                if columns == {1}:
                    raise
        pairs: dict[str, tuple[Path, Path]] = {}
        alone: list[Path] = []
        wrong: list[PairingProblem] = []
        for row in rows:
            name = row[0] if len(row) == 1 and row[0] in known else _bare(self._relative(row[0]))
            if len(row) < max(columns) and name not in known:
                alone.append(self._inside((row[0], row[0]), path)[0])
            elif len(row) == 1 and name not in known:
                message = f"list {path} names '{row[0]}', but {self.root} has no such image and mask. Correct the list."
                wrong.append(PairingProblem(path, message))
            elif name in pairs:
                wrong.append(PairingProblem(path, f"list {path} names '{name}' twice; remove one line."))
            else:
                pairs[name] = known[name] if len(row) == 1 else self._inside(row, path)
        if not rows:
            raise DataProblem(f"list {path} is empty; write one 'image mask' line per sample.")
        return Pairing(pairs=pairs, images_alone=tuple(alone), wrong=tuple(wrong))

    def _relative(self, name: str) -> str:
        """Return a name in a list as seen from `root`."""
        place, root = Path(name), self.root.absolute()
        return str(place.relative_to(root)) if place.is_relative_to(root) else name.lstrip("/")

    def _inside(self, row: Sequence[str], path: Path) -> tuple[Path, Path]:
        """Return the two files of a line. The list may be downloaded, so files outside of `root` are refused.

        Tools write names from the folder of the list with a slash at the beginning, too.
        """
        root = self.root.absolute()
        below = [name.lstrip("/") for name in row]
        row = [
            there if os.path.isfile(root / there) else name  # noqa: PTH113 - accepts any text
            for name, there in zip(row, below, strict=True)
        ]
        for name in row:
            if not Path(os.path.normpath(root / name)).is_relative_to(os.path.normpath(root)):
                raise DataProblem(
                    f"list {path} names '{name[:100]}', which lies outside {self.root}; nothing there was read. Move "
                    "the files below that folder (a link to their folder will do), and name them from there."
                )
        return self.root / row[0], self.root / row[1]

    def _by_name(self) -> Mapping[str, tuple[Path, Path]]:
        both = self._image_and_mask(self.root)
        if both is None:
            raise self._strange()
        return pair_folders(*both).pairs

    def _image_and_mask(self, place: Path) -> tuple[Path, Path] | None:
        """Find the two folders; an image folder without a mask folder raises `DataProblem`."""
        images = _named(place, self.images, self.image_folders)
        if images is None:
            return None
        masks = _named(place, self.masks, self.mask_folders)
        if masks is None:
            raise DataProblem(
                f"{images} has no folder of masks beside it; looked for "
                f"{self.masks or ', '.join(self.mask_folders)}. Add it, or name it with masks=..."
            )
        return images, masks

    def _strange(self) -> DataProblem:
        inside = ", ".join(place.name for place in list_folders(self.root)[:8]) or "no folders"
        return DataProblem(
            f"{self.root} holds {inside}; expected 'images' beside '{self.mask_folders[0]}', 'train/images' beside "
            f"'train/{self.mask_folders[0]}', or train.txt with 'image mask' lines. Rename, or give images=... and "
            "masks=..."
        )


def _named(place: Path, name: str | None, common: tuple[str, ...]) -> Path | None:
    if name is not None:
        return place / name if (place / name).is_dir() else None
    by_name = {folder.name.lower(): folder for folder in reversed(list_folders(place))}
    return next((by_name[choice] for choice in common if choice in by_name), None)


def _split_folders(place: Path) -> dict[str, Path]:
    """Return the folders named like splits, train first."""
    named = {
        COMMON_NAMES[folder.name.lower()]: folder
        for folder in list_folders(place)
        if folder.name.lower() in COMMON_NAMES
    }
    return {split: named[split] for split in SPLIT_ORDER if split in named}


def _divides(images: Path, places: Mapping[str, Path]) -> bool:
    """Tell whether these folders are splits: one is called train, or all folders are named like splits."""
    return "train" in places or (bool(places) and len(places) == len(list_folders(images)))


def _bare(name: str) -> str:
    return Path(name).with_suffix("").as_posix()

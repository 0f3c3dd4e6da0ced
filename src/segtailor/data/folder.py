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
from segtailor.core.task import Task
from segtailor.data.dataset import DATASETS
from segtailor.data.files import list_folders
from segtailor.data.labels import LabelMap
from segtailor.data.legend import FILES, Legend, LegendClass, Value, numbered, parse_colour, read_legend
from segtailor.data.pairs import FileDataset, Pairing, pair_folders
from segtailor.data.splits import COMMON_NAMES, by_ratio, read_list
from segtailor.data.survey import Survey, legend_of, survey

IMAGE_FOLDERS = ("images", "image", "imgs", "img", "jpegimages", "inputs")
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
)
VAL_SHARE = 0.2


@DATASETS.register("folder")
@dataclass(frozen=True, kw_only=True)
class Folder(FileDataset):
    """Images and masks below one folder, or in one list file.

    Classes come from `classes` (names), `count`, `palette` (one colour per class), a `legend` file, a
    classes.yaml, classes.txt or palette.json in the folder, or else from the masks themselves.
    `ignore` adds ids and colours that do not count; `others` says what to do with values of no class;
    `binary` reads 0/255 masks as two classes. Without split folders or lists, `val` and `test` are drawn by `seed`.
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

    @property
    def labels(self) -> LabelMap:
        """What the values in mask files mean."""
        legend, by_colour = self._meaning
        return legend.label_map(ignore_others=self.others == "ignore", by_colour=by_colour)

    def find(self) -> Mapping[str, Pairing]:
        """Look for list files, then for folders per split, then for one set to divide."""
        if self.path.is_file():
            return self._divided(self._listed(self.path, self.path.parent))
        lists = self._lists()
        if lists:
            return {split: self._listed(path, self.path) for split, path in lists.items()}
        found = self._folders()
        if set(found) == {""}:
            return self._divided(found[""])
        if "val" not in found and "train" in found and self.val is not None:
            divided = self._divided(found["train"])
            return {
                **found,
                **{split: part for split, part in divided.items() if split not in found or split == "train"},
            }
        return found

    def _lists(self) -> dict[str, Path]:
        candidates = [
            (split, self.path / f"{name}{suffix}")
            for name, split in COMMON_NAMES.items()
            for suffix in (".txt", ".csv")
        ]
        return {split: path for split, path in candidates if path.is_file()}

    def _folders(self) -> dict[str, Pairing]:
        """Pair the folders of each split; the key `""` means that there are no splits."""
        pair = _image_and_mask(self.path, self.images, self.masks)
        if pair is None:
            nested = {
                split: (place, _image_and_mask(place, self.images, self.masks))
                for split, place in _split_folders(self.path)
            }
            ready = {split: (place, both) for split, (place, both) in nested.items() if both is not None}
            if not ready:
                raise self._strange_layout()
            return {
                split: pair_folders(*both, prefix=f"{place.name}/") for split, (place, both) in ready.items()
            }
        images, masks = pair
        splits = dict(_split_folders(images))
        if not splits or len(splits) != len(list_folders(images)):
            return {"": pair_folders(images, masks)}
        mask_splits = dict(_split_folders(masks))
        missing = [split for split in splits if split not in mask_splits and split != "test"]
        if missing:
            raise DataProblem(f"{splits[missing[0]]} has no folder of masks inside {masks}; add it.")
        return {
            split: pair_folders(place, mask_splits[split], prefix=f"{place.name}/")
            for split, place in splits.items()
            if split in mask_splits  # a test split often comes without masks
        }

    def _listed(self, path: Path, root: Path) -> Pairing:
        pairs: dict[str, tuple[Path, Path]] = {}
        known: Mapping[str, tuple[Path, Path]] | None = None
        for row in read_list(path):
            if len(row) == 1:
                known = self._by_name() if known is None else known
                name = row[0] if row[0] in known else Path(row[0]).with_suffix("").as_posix()
                if name not in known:
                    raise DataProblem(
                        f"list {path} names '{row[0]}', but no such image with a mask is in {root}."
                    )
                files = known[name]
            else:
                name = Path(row[0]).with_suffix("").as_posix()
                files = (root / row[0], root / row[1])
            if name in pairs:
                raise DataProblem(f"list {path} names '{name}' twice; remove one line.")
            pairs[name] = files
        if not pairs:
            raise DataProblem(f"list {path} is empty; write one 'image mask' line per sample.")
        return Pairing(pairs=pairs)

    def _by_name(self) -> Mapping[str, tuple[Path, Path]]:
        both = _image_and_mask(self.path if self.path.is_dir() else self.path.parent, self.images, self.masks)
        if both is None:
            raise self._strange_layout()
        return pair_folders(*both).pairs

    def _divided(self, whole: Pairing) -> dict[str, Pairing]:
        """Divide by ratio; files without a partner stay with `train`, so that nothing is lost from sight."""
        if not whole.pairs:
            whole.complete(self.path)
        val = VAL_SHARE if self.val is None else self.val
        table = by_ratio(tuple(whole.pairs), val=val, test=self.test or 0.0, seed=self.seed)
        parts = {
            split: Pairing(pairs={name: whole.pairs[name] for name in names})
            for split, names in table.items()
        }
        parts["train"] = Pairing(
            pairs=parts["train"].pairs, images_alone=whole.images_alone, masks_alone=whole.masks_alone
        )
        return parts

    def _strange_layout(self) -> DataProblem:
        inside = ", ".join(place.name for place in list_folders(self.path)[:8]) or "no folders"
        return DataProblem(
            f"{self.path} holds {inside}; expected 'images' beside 'masks', 'train/images' beside "
            "'train/masks', or train.txt with 'image mask' lines. Rename, or name the folders with images=... and masks=..."
        )

    @cached_property
    def _meaning(self) -> tuple[Legend, bool]:
        """The legend, and whether palette files are read by colour."""
        by_colour = self.encoding == "colour"
        given = self._given()
        if given is not None:
            return given.ignoring(self.ignore), by_colour
        found = self._survey()
        by_colour = by_colour or (self.encoding == "auto" and found.coloured)
        ignored = Legend(classes=()).ignoring(self.ignore)
        return legend_of(found, by_colour=by_colour, ignored=ignored), by_colour

    def _given(self) -> Legend | None:
        if self.classes or self.palette or self.count is not None:
            return self._from_options()
        if self.legend is not None:
            return read_legend(self.legend)
        root = self.path if self.path.is_dir() else self.path.parent
        listed = next((root / name for name in FILES if (root / name).is_file()), None)
        if listed is not None:
            return read_legend(listed)
        return self._from_options() if self.binary else None

    def _from_options(self) -> Legend:
        colours = tuple(parse_colour(colour) for colour in self.palette)
        names = self.classes or (
            ("background", "foreground") if self.binary else numbered(self.count or len(colours))
        )
        sizes = {
            len(names),
            len(colours) or len(names),
            self.count or len(names),
            2 if self.binary else len(names),
        }
        if len(sizes) > 1 or not names:
            raise DataProblem(
                f"classes, palette, count and binary disagree: {len(names)} names, {len(colours)} colours, "
                f"count {self.count}, binary {self.binary}. Give as many of each."
            )
        ids: tuple[tuple[int, ...], ...] = ((0,), (1, 255)) if self.binary else ((),) * len(names)
        rows = zip(names, ids, colours or (None,) * len(names), strict=True)
        return Legend(
            classes=tuple(LegendClass(name=name, ids=own, colour=colour) for name, own, colour in rows)
        )

    def _survey(self) -> Survey:
        masks = [mask for pairing in self.pairings.values() for _, mask in pairing.pairs.values()]
        return survey(masks)


def _image_and_mask(root: Path, images: str | None, masks: str | None) -> tuple[Path, Path] | None:
    """Find the two folders by the names given or by common ones; images without masks raise."""
    image_folder = _named(root, images, IMAGE_FOLDERS)
    if image_folder is None:
        return None
    mask_folder = _named(root, masks, MASK_FOLDERS)
    if mask_folder is None:
        raise DataProblem(
            f"{image_folder} has no folder of masks beside it; looked for "
            f"{masks or ', '.join(MASK_FOLDERS)}. Add it, or name it with masks=..."
        )
    return image_folder, mask_folder


def _named(root: Path, name: str | None, common: tuple[str, ...]) -> Path | None:
    if name is not None:
        return root / name if (root / name).is_dir() else None
    by_name = {place.name.lower(): place for place in reversed(list_folders(root))}
    return next((by_name[choice] for choice in common if choice in by_name), None)


def _split_folders(root: Path) -> list[tuple[str, Path]]:
    """Return the folders inside `root` that are named like splits, train first."""
    named = [
        (COMMON_NAMES[place.name.lower()], place)
        for place in list_folders(root)
        if place.name.lower() in COMMON_NAMES
    ]
    order = ("train", "val", "test")
    return sorted(named, key=lambda item: order.index(item[0]))

"""Cityscapes (Cordts et al., 2016) and BDD100K semantic segmentation (Yu et al., 2020), which share 19 classes.

Cityscapes has leftImg8bit images, gtFine and gtCoarse masks; BDD100K has 10,000 images and masks of train ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from segtailor.core.errors import DataProblem
from segtailor.core.task import IGNORE, Colour, Task
from segtailor.data.files import read_text
from segtailor.data.legend import MAX_CLASS_LIST_BYTES, LabelMap, Legend, read_legend
from segtailor.data.pairs import (
    DEFAULT_VAL_SHARE,
    FileDataset,
    Pairing,
    divide_pairing,
    join_pairings,
    pair_folders,
)

# name: (id in labelIds files, colour); the order is that of the train ids
CLASSES: Mapping[str, tuple[int, Colour]] = {
    "road": (7, (128, 64, 128)),
    "sidewalk": (8, (244, 35, 232)),
    "building": (11, (70, 70, 70)),
    "wall": (12, (102, 102, 156)),
    "fence": (13, (190, 153, 153)),
    "pole": (17, (153, 153, 153)),
    "traffic light": (19, (250, 170, 30)),
    "traffic sign": (20, (220, 220, 0)),
    "vegetation": (21, (107, 142, 35)),
    "terrain": (22, (152, 251, 152)),
    "sky": (23, (70, 130, 180)),
    "person": (24, (220, 20, 60)),
    "rider": (25, (255, 0, 0)),
    "car": (26, (0, 0, 142)),
    "truck": (27, (0, 0, 70)),
    "bus": (28, (0, 60, 100)),
    "train": (31, (0, 80, 100)),
    "motorcycle": (32, (0, 0, 230)),
    "bicycle": (33, (119, 11, 32)),
}
OWN_CLASSES = "label_colors.txt"  # of exports in this layout: a class per line, its position is its id
UNDIVIDED = "default"  # the folder of exports that are not divided into splits
TASK = Task(classes=tuple(CLASSES), palette=tuple(colour for _, colour in CLASSES.values()))
LABEL_IDS = LabelMap(
    ids={
        **dict.fromkeys(range(34), IGNORE),  # the 34 ids of the full label set; 15 of them do not count
        IGNORE: IGNORE,  # the licence plate's -1, stored in a byte
        **{own: label for label, (own, _) in enumerate(CLASSES.values())},
    }
)
TRAIN_IDS = LabelMap(ids={**{label: label for label in range(len(CLASSES))}, IGNORE: IGNORE})
BDD100K_LAYOUTS = (  # images, masks, ending of mask names; the second is the release of 2018
    ("images/10k/{}", "labels/sem_seg/masks/{}", ""),
    ("seg/images/{}", "seg/labels/{}", "_train_id"),
)


@dataclass(frozen=True, kw_only=True)
class Cityscapes(FileDataset):
    """Finely labelled Cityscapes; the masks of the test split are withheld, so it is left out.

    Annotation tools export other classes in the same layout, with a list of them (`label_colors.txt`).
    """

    @property
    def task(self) -> Task:
        """The 19 classes of the benchmark, or those of the list."""
        return TASK if self._own is None else self._own.task

    @property
    def labels(self) -> LabelMap:
        """Ids of the list or of the full label set, or train ids where only those are on disk."""
        if self._own is not None:
            return self._own.label_map()
        return TRAIN_IDS if self._ending == "_gtFine_labelTrainIds" else LABEL_IDS

    def find(self) -> Mapping[str, Pairing]:
        """Pair leftImg8bit/SPLIT/CITY with gtFine/SPLIT/CITY."""
        found = {
            split: self._pair(images, masks)
            for split in ("train", "val", UNDIVIDED)
            if (images := self.path / "leftImg8bit" / split).is_dir()
            and (masks := self.path / "gtFine" / split).is_dir()
        }
        whole = found.pop(UNDIVIDED, None)
        if whole is not None and not found:
            return divide_pairing(whole, where=self.path, val=DEFAULT_VAL_SHARE, test=0.0, seed=0)
        if not found:
            raise DataProblem(
                f"{self.path} is not a Cityscapes folder: expected leftImg8bit/train beside gtFine/train."
            )
        return found

    def _pair(self, images: Path, masks: Path) -> Pairing:
        """Pair by name; other masks of the same frames (colours, instances) are not used, and need no mention."""
        pairing = pair_folders(images, masks, endings=(self._ending,), image_ending="_leftImg8bit")
        alone = tuple(path for path in pairing.masks_alone if path.stem.endswith(self._ending))
        return replace(pairing, masks_alone=alone)

    @property
    def _ending(self) -> str:
        for name in ("labelIds", "labelTrainIds"):
            for places in ("gtFine/*/*/*", "gtFine/*/*"):
                if next(self.path.glob(f"{places}_gtFine_{name}.png"), None) is not None:
                    return f"_gtFine_{name}"
        raise DataProblem(
            f"{self.path} holds no gtFine/*/*/*_gtFine_labelIds.png; unpack gtFine_trainvaltest.zip there."
        )

    @cached_property
    def _own(self) -> Legend | None:
        """The classes of an export; None for those of Cityscapes, listed or not."""
        file = self.path / OWN_CLASSES
        if not file.is_file():
            return None
        text = read_text(file, what="class list", limit=MAX_CLASS_LIST_BYTES)
        lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
        names = {"".join(line.split()[3:]): place for place, line in enumerate(lines)}
        official = {name.replace(" ", ""): own for name, (own, _) in CLASSES.items()}
        return None if official.items() <= names.items() else read_legend(file)


@dataclass(frozen=True, kw_only=True)
class CityscapesCoarse(FileDataset):
    """Coarsely labelled Cityscapes: `train` is 2,975 frames and, where unpacked, 19,998 more (train_extra).

    `val` has the fine masks of the same frames as `Cityscapes`, so that scores mean the same.
    """

    @property
    def task(self) -> Task:
        """The 19 classes of the benchmark."""
        return TASK

    @property
    def labels(self) -> LabelMap:
        """Ids of the full label set; train ids where only those are on disk."""
        return TRAIN_IDS if self._ids == "labelTrainIds" else LABEL_IDS

    def find(self) -> Mapping[str, Pairing]:
        """Pair leftImg8bit/SPLIT/CITY with gtCoarse/SPLIT/CITY, and val with gtFine/val."""
        coarse = [part for part in ("train", "train_extra") if self._both(part, "gtCoarse")]
        if not coarse:
            raise DataProblem(
                f"{self.path} holds no coarse masks of Cityscapes: expected leftImg8bit/train (or train_extra) beside "
                "gtCoarse/train. Unpack gtCoarse.zip there."
            )
        found = {"train": join_pairings([self._pair(part, "gtCoarse") for part in coarse])}
        if self._both("val", "gtFine"):
            found["val"] = self._pair("val", "gtFine")
        return found

    def _both(self, split: str, kind: str) -> bool:
        return (self.path / "leftImg8bit" / split).is_dir() and (self.path / kind / split).is_dir()

    def _pair(self, split: str, kind: str) -> Pairing:
        images, masks = self.path / "leftImg8bit" / split, self.path / kind / split
        return pair_folders(images, masks, endings=(f"_{kind}_{self._ids}",), image_ending="_leftImg8bit")

    @property
    def _ids(self) -> str:
        for name in ("labelIds", "labelTrainIds"):
            if next(self.path.glob(f"gtCoarse/*/*/*_gtCoarse_{name}.png"), None) is not None:
                return name
        raise DataProblem(
            f"{self.path} holds no gtCoarse/*/*/*_gtCoarse_labelIds.png; unpack gtCoarse.zip there."
        )


@dataclass(frozen=True, kw_only=True)
class Bdd100k(FileDataset):
    """BDD100K; the masks of the test split are withheld, so it is left out."""

    @property
    def task(self) -> Task:
        """The 19 classes."""
        return TASK

    @property
    def labels(self) -> LabelMap:
        """Train ids."""
        return TRAIN_IDS

    def find(self) -> Mapping[str, Pairing]:
        """Look for the current layout, then for the older one, here or in a `bdd100k` folder."""
        for root in (self.path, self.path / "bdd100k"):
            for images, masks, ending in BDD100K_LAYOUTS:
                found = {
                    split: pair_folders(left, right, endings=(ending,))
                    for split in ("train", "val")
                    if (left := root / images.format(split)).is_dir()
                    and (right := root / masks.format(split)).is_dir()
                }
                if found:
                    return found
        raise DataProblem(
            f"{self.path} is not a BDD100K folder: expected images/10k/train beside labels/sem_seg/masks/train, "
            "or seg/images/train beside seg/labels/train. Check the path."
        )

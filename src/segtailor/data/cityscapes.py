"""Cityscapes (Cordts et al., 2016) and BDD100K semantic segmentation (Yu et al., 2020), which share 19 classes.

Cityscapes has leftImg8bit images, gtFine and gtCoarse masks; BDD100K has 10,000 images and masks of train ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from segtailor.core.errors import DataProblem
from segtailor.core.task import IGNORE, Colour, Task
from segtailor.data.legend import LabelMap
from segtailor.data.pairs import FileDataset, Pairing, join_pairings, pair_folders

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
    """Finely labelled Cityscapes; the masks of the test split are withheld, so it is left out."""

    @property
    def task(self) -> Task:
        """The 19 classes of the benchmark."""
        return TASK

    @property
    def labels(self) -> LabelMap:
        """Ids of the full label set, or train ids where only those are on disk."""
        return TRAIN_IDS if self._ending == "_gtFine_labelTrainIds" else LABEL_IDS

    def find(self) -> Mapping[str, Pairing]:
        """Pair leftImg8bit/SPLIT/CITY with gtFine/SPLIT/CITY."""
        found = {
            split: pair_folders(images, masks, endings=(self._ending,), image_ending="_leftImg8bit")
            for split in ("train", "val")
            if (images := self.path / "leftImg8bit" / split).is_dir()
            and (masks := self.path / "gtFine" / split).is_dir()
        }
        if not found:
            raise DataProblem(
                f"{self.path} is not a Cityscapes folder: expected leftImg8bit/train beside gtFine/train."
            )
        return found

    @property
    def _ending(self) -> str:
        for name in ("labelIds", "labelTrainIds"):
            if next(self.path.glob(f"gtFine/*/*/*_gtFine_{name}.png"), None) is not None:
                return f"_gtFine_{name}"
        raise DataProblem(
            f"{self.path} holds no gtFine/*/*/*_gtFine_labelIds.png; unpack gtFine_trainvaltest.zip there."
        )


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

"""BDD100K semantic segmentation (Yu et al., 2020): 10k images, the 19 classes of Cityscapes as train ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from segtailor.core.errors import DataProblem
from segtailor.core.registry import DATASETS
from segtailor.core.task import Task
from segtailor.data import cityscapes
from segtailor.data.labels import LabelMap
from segtailor.data.pairs import FileDataset, Pairing, pair_folders

LAYOUTS = (  # images, masks, ending of mask names; the second is the release of 2018
    ("images/10k/{}", "labels/sem_seg/masks/{}", ""),
    ("seg/images/{}", "seg/labels/{}", "_train_id"),
)


@DATASETS.register("bdd100k")
@dataclass(frozen=True, kw_only=True)
class Bdd100k(FileDataset):
    """BDD100K; the masks of the test split are withheld, so it is left out."""

    @property
    def task(self) -> Task:
        """The 19 classes."""
        return cityscapes.TASK

    @property
    def labels(self) -> LabelMap:
        """Train ids."""
        return cityscapes.TRAIN_IDS

    def find(self) -> Mapping[str, Pairing]:
        """Look for the current layout, then for the older one, here or in a `bdd100k` folder."""
        for root in (self.path, self.path / "bdd100k"):
            for images, masks, ending in LAYOUTS:
                found = {
                    split: pair_folders(left, right, endings=(ending,))
                    for split in ("train", "val")
                    if (left := root / images.format(split)).is_dir()
                    and (right := root / masks.format(split)).is_dir()
                }
                if found:
                    return found
        raise DataProblem(
            f"{self.path} is no BDD100K folder: expected images/10k/train beside labels/sem_seg/masks/train, "
            "or seg/images/train beside seg/labels/train. Check the path."
        )

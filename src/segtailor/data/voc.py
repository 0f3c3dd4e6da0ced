"""Pascal VOC 2012 segmentation (Everingham et al., 2010): 21 classes; uses the augmented training list if present."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from segtailor.core.errors import DataProblem, unknown
from segtailor.core.task import IGNORE, Colour, Task
from segtailor.data.legend import LabelMap
from segtailor.data.pairs import FileDataset, Pairing
from segtailor.data.splits import read_list

CLASSES = (
    "background",
    "aeroplane",
    "bicycle",
    "bird",
    "boat",
    "bottle",
    "bus",
    "car",
    "cat",
    "chair",
    "cow",
    "diningtable",
    "dog",
    "horse",
    "motorbike",
    "person",
    "pottedplant",
    "sheep",
    "sofa",
    "train",
    "tvmonitor",
)
LISTS = Path("ImageSets/Segmentation")
AUGMENTED_MASKS = "SegmentationClassAug"  # the masks of Hariharan et al., 2011, as ids
AUGMENTED_LISTS = ("train_aug", "trainaug")


def voc_palette(count: int) -> tuple[Colour, ...]:
    """Return VOC's colours: the bits of the class number, distributed over red, green and blue from the highest bit."""
    colours = []
    for index in range(count):
        channels = [
            sum((index >> (3 * bit + channel) & 1) << (7 - bit) for bit in range(8)) for channel in range(3)
        ]
        colours.append((channels[0], channels[1], channels[2]))
    return tuple(colours)


TASK = Task(classes=CLASSES, palette=voc_palette(len(CLASSES)))
LABELS = LabelMap(
    ids={**{label: label for label in range(len(CLASSES))}, IGNORE: IGNORE},
    colours={**{colour: label for label, colour in enumerate(TASK.palette)}, (224, 224, 192): IGNORE},
)


@dataclass(frozen=True, kw_only=True)
class Voc(FileDataset):
    """Pascal VOC. `list` names the training list; by default the augmented one if its masks are there."""

    list: str | None = None

    @property
    def task(self) -> Task:
        """Twenty objects and background."""
        return TASK

    @property
    def labels(self) -> LabelMap:
        """Ids as they are; the border colour does not count."""
        return LABELS

    def find(self) -> Mapping[str, Pairing]:
        """Read the lists of train and val."""
        training = self.list or self._default_list()
        found = {"train": self._read(training)}
        if (self._root / LISTS / "val.txt").is_file():
            found["val"] = self._read("val")
        return found

    @cached_property
    def _root(self) -> Path:
        for root in (self.path, self.path / "VOC2012", self.path / "VOCdevkit/VOC2012"):
            if (root / "JPEGImages").is_dir() and (root / LISTS).is_dir():
                return root
        raise DataProblem(
            f"{self.path} is not a VOC folder: expected JPEGImages and {LISTS.as_posix()} inside."
        )

    def _default_list(self) -> str:
        if (self._root / AUGMENTED_MASKS).is_dir():
            for name in AUGMENTED_LISTS:
                if (self._root / LISTS / f"{name}.txt").is_file():
                    return name
        return "train"

    def _read(self, name: str) -> Pairing:
        path = self._root / LISTS / f"{name}.txt"
        if not path.is_file():
            raise unknown("VOC list", name, (known.stem for known in path.parent.glob("*.txt")))
        folder = self._root / (AUGMENTED_MASKS if "aug" in name else "SegmentationClass")
        pairs: dict[str, tuple[Path, Path]] = {}
        for row in read_list(path):
            stem = Path(row[0]).stem
            pairs[stem] = (self._root / "JPEGImages" / f"{stem}.jpg", folder / f"{stem}.png")
        alone = tuple(image for image, mask in pairs.values() if not mask.is_file())
        return Pairing(
            pairs={stem: files for stem, files in pairs.items() if files[0] not in set(alone)},
            images_alone=alone,
        )

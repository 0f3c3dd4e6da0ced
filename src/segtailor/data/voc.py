"""Pascal VOC's layout: JPEGImages, SegmentationClass and lists in ImageSets/Segmentation.

Without a list of classes it is Pascal VOC 2012 itself (Everingham et al., 2010): 21 classes, and the augmented training
list if its masks are there. Annotation tools export the same layout for any classes, with a labelmap.txt of a line
`name:red,green,blue:parts:actions` per class, and masks in these colours (VOC's own where a line has none).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from segtailor.core.errors import DataProblem, unknown
from segtailor.core.task import IGNORE, Colour, Task
from segtailor.data.files import list_pictures, read_text
from segtailor.data.legend import MAX_CLASS_LIST_BYTES, LabelMap, Legend, LegendClass
from segtailor.data.pairs import DEFAULT_VAL_SHARE, FileDataset, Pairing, divide_pairing
from segtailor.data.splits import COMMON_NAMES, read_list

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
PICTURES, MASKS, LABEL_MAP = "JPEGImages", "SegmentationClass", "labelmap.txt"
BORDER = (224, 224, 192)  # around objects; does not count
WHOLE_LISTS = ("trainval", "default")  # of sets that are not divided
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
    colours={**{colour: label for label, colour in enumerate(TASK.palette)}, BORDER: IGNORE},
)


def voc_root(path: Path) -> Path | None:
    """Return the folder of the layout at or below a path, None if there is none."""
    for root in (path, path / "VOC2012", path / "VOCdevkit/VOC2012"):
        if (root / PICTURES).is_dir() and (root / LISTS).is_dir():
            return root
    return None


def read_label_map(path: Path) -> Legend:
    """Read the classes of an export and their colours."""
    rows: list[LegendClass] = []
    for number, line in enumerate(
        read_text(path, what="label map", limit=MAX_CLASS_LIST_BYTES).splitlines(), start=1
    ):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, _, rest = line.strip().partition(":")
        colour = rest.partition(":")[0].strip()
        if not colour and rest:
            rows.append(LegendClass(name=name, colour=voc_palette(len(rows) + 1)[-1]))
            continue
        values = colour.split(",")
        if (
            not all(value.strip().isascii() and value.strip().isdigit() for value in values)
            or len(values) != 3
        ):
            raise DataProblem(
                f"label map {path}, line {number}: expected 'name:red,green,blue:parts:actions', got '{line[:60]}'. "
                "Export it again."
            )
        red, green, blue = (min(int(value), 256) for value in values)
        if max(red, green, blue) > 255:
            raise DataProblem(f"label map {path}, line {number}: colours are numbers from 0 to 255.")
        rows.append(LegendClass(name=name, colour=(red, green, blue)))
    if not rows:
        raise DataProblem(f"label map {path} names no class; export it again.")
    ignored = () if BORDER in [row.colour for row in rows] else (BORDER,)
    legend = Legend(classes=tuple(rows), ignore_colours=ignored)
    try:
        legend.task  # noqa: B018 - raises on duplicate, missing and unprintable names
        legend.label_map(by_colour=True)
    except DataProblem as problem:
        raise DataProblem(f"label map {path}: {problem}") from None
    return legend


@dataclass(frozen=True, kw_only=True)
class Voc(FileDataset):
    """Pascal VOC, or an export in its layout. `list` names the training list; by default the augmented one if its masks
    are there. `val` and `test` are the shares to hold out, by `seed`, where the lists do not divide the samples.
    """

    list: str | None = None
    val: float | None = None
    test: float | None = None
    seed: int = 0

    @property
    def task(self) -> Task:
        """The classes of the label map, or twenty objects and background."""
        return TASK if self._legend is None else self._legend.task

    @cached_property
    def labels(self) -> LabelMap:
        """Ids as they are, or the colours of the label map; the border colour does not count."""
        return LABELS if self._legend is None else self._legend.label_map(by_colour=True)

    def find(self) -> Mapping[str, Pairing]:
        """Read the lists of the splits, or divide the samples of the only list."""
        lists = {path.stem: path for path in sorted((self._root / LISTS).glob("*.txt"))}
        if not lists:
            raise DataProblem(
                f"{self._root / LISTS} holds no list of pictures with masks. Export segmentation masks, not only boxes "
                "or polygons, or write a list train.txt there."
            )
        training = self.list or self._default_list(lists)
        found = {"train": self._read(training, lists)}
        for name, split in COMMON_NAMES.items():
            if name in lists and split != "train" and name != training:
                pairing = self._read(name, lists)
                if pairing.pairs or split != "test":  # the masks of test splits are often kept back
                    found[split] = pairing
        held = {
            split: share for split, share in (("val", self.val), ("test", self.test)) if share is not None
        }
        for split, share in held.items():
            if split in found:
                raise DataProblem(f"{self.path} has its own split '{split}'; leave out {split}={share:g}.")
        if "val" not in found and self.list is None and training != "train":
            held.setdefault("val", DEFAULT_VAL_SHARE)
        if not held:
            return found
        shares = {"val": held.get("val", 0.0), "test": held.get("test", 0.0)}
        return {**found, **divide_pairing(found["train"], where=self.path, seed=self.seed, **shares)}

    @cached_property
    def _root(self) -> Path:
        root = voc_root(self.path)
        if root is None:
            raise DataProblem(
                f"{self.path} is not a VOC folder: expected {PICTURES} and {LISTS.as_posix()} inside."
            )
        return root

    @cached_property
    def _legend(self) -> Legend | None:
        file = self._root / LABEL_MAP
        return read_label_map(file) if file.is_file() else None

    def _default_list(self, lists: Mapping[str, Path]) -> str:
        if (self._root / AUGMENTED_MASKS).is_dir():
            for name in AUGMENTED_LISTS:
                if name in lists:
                    return name
        if "train" in lists or not lists:
            return "train"
        return next((name for name in WHOLE_LISTS if name in lists), next(iter(lists)))

    @cached_property
    def _pictures(self) -> Mapping[str, Path]:
        folder = self._root / PICTURES
        return {path.relative_to(folder).with_suffix("").as_posix(): path for path in list_pictures(folder)}

    def _read(self, name: str, lists: Mapping[str, Path]) -> Pairing:
        if name not in lists:
            raise unknown("VOC list", name, lists)
        folder = self._root / (AUGMENTED_MASKS if "aug" in name else MASKS)
        pairs: dict[str, tuple[Path, Path]] = {}
        for row in read_list(lists[name], known=self._pictures):
            listed = Path(row[0])
            below = listed.as_posix() in self._pictures  # a name of its own, perhaps in a folder
            stem = listed.as_posix() if below else listed.stem
            image = self._pictures.get(stem, self._root / PICTURES / f"{stem}.jpg")
            pairs[stem] = (image, folder / f"{stem}.png")
        alone = tuple(image for image, mask in pairs.values() if not mask.is_file())
        return Pairing(
            pairs={stem: files for stem, files in pairs.items() if files[0] not in set(alone)},
            images_alone=alone,
        )

"""CamVid (Brostow et al., 2008) with the 11 classes of SegNet (Badrinarayanan et al., 2017).

Layouts: `images/{train,val,test}` + `masks/...` (ids, 255 unlabelled); `train` + `trainannot` (SegNet
tutorial: ids, 11 unlabelled); with 32 colours `train` + `train_labels`, or `701_StillsRaw_full` +
`LabeledApproved_full`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from segtailor.core.errors import DataProblem, unknown
from segtailor.core.task import IGNORE, Colour, Task
from segtailor.data.legend import LabelMap
from segtailor.data.pairs import FileDataset, Pairing, PairingProblem, pair_folders
from segtailor.data.splits import read_list

SPLITS = ("train", "val", "test")
DRIVES = ("0001TP", "0006R0", "0016E5", "Seq05VD")

# The 32 classes of the original by the class they merge into, each with its colour.
MERGED: Mapping[str, Mapping[str, Colour]] = {
    "sky": {"Sky": (128, 128, 128)},
    "building": {
        "Building": (128, 0, 0),
        "Archway": (192, 0, 128),
        "Bridge": (0, 128, 64),
        "Tunnel": (64, 0, 64),
        "Wall": (64, 192, 0),
    },
    "pole": {"Column_Pole": (192, 192, 128), "TrafficCone": (0, 0, 64)},
    "road": {"Road": (128, 64, 128), "LaneMkgsDriv": (128, 0, 192), "LaneMkgsNonDriv": (192, 0, 64)},
    "sidewalk": {"Sidewalk": (0, 0, 192), "ParkingBlock": (64, 192, 128), "RoadShoulder": (128, 128, 192)},
    "tree": {"Tree": (128, 128, 0), "VegetationMisc": (192, 192, 0)},
    "sign": {"SignSymbol": (192, 128, 128), "Misc_Text": (128, 128, 64), "TrafficLight": (0, 64, 64)},
    "fence": {"Fence": (64, 64, 128)},
    "car": {
        "Car": (64, 0, 128),
        "SUVPickupTruck": (64, 128, 192),
        "Truck_Bus": (192, 128, 192),
        "Train": (192, 64, 128),
        "OtherMoving": (128, 64, 64),
    },
    "pedestrian": {
        "Pedestrian": (64, 64, 0),
        "Child": (192, 128, 64),
        "CartLuggagePram": (64, 0, 192),
        "Animal": (64, 128, 64),
    },
    "bicyclist": {"Bicyclist": (0, 128, 192), "MotorcycleScooter": (192, 0, 192)},
}
VOID: Colour = (0, 0, 0)

TASK = Task(
    classes=tuple(MERGED),
    palette=tuple(next(iter(members.values())) for members in MERGED.values()),
)
LABELS = LabelMap(
    ids={**{label: label for label in range(len(MERGED))}, 11: IGNORE, IGNORE: IGNORE},
    colours={
        **{colour: label for label, members in enumerate(MERGED.values()) for colour in members.values()},
        VOID: IGNORE,
    },
    ignore_other_colours=True,  # the hand-painted masks hold a few stray colours
)


@dataclass(frozen=True, kw_only=True)
class CamVid(FileDataset):
    """CamVid road scenes. `fold` is a drive to leave out: val is that drive, train the rest of train and val."""

    fold: str | None = None

    @property
    def task(self) -> Task:
        """The 11 classes."""
        return TASK

    @property
    def labels(self) -> LabelMap:
        """Ids as they are, colours merged."""
        return LABELS

    def find(self) -> Mapping[str, Pairing]:
        """Try each known layout in turn."""
        found = self._by_folder() or self._by_frame()
        if not found:
            raise DataProblem(
                f"{self.path} is not a CamVid folder: expected images/train + masks/train, train + trainannot, "
                "train + train_labels, or 701_StillsRaw_full + LabeledApproved_full. Check the path."
            )
        return found if self.fold is None else _leave_out(found, self.fold)

    def _by_folder(self) -> dict[str, Pairing]:
        forms = (("images/{}", "masks/{}"), ("{}", "{}annot"), ("{}", "{}_labels"))
        for images, masks in forms:
            places = {
                split: (self.path / images.format(split), self.path / masks.format(split)) for split in SPLITS
            }
            found = {
                split: pair_folders(*both) for split, both in places.items() if all(map(Path.is_dir, both))
            }
            if found:
                return found
        return {}

    def _by_frame(self) -> dict[str, Pairing]:
        """Divide the 701 stills by `train.txt`, `val.txt` and `test.txt`, or by the usual frame numbers."""
        forms = (("701_StillsRaw_full", "LabeledApproved_full"), ("images", "labels"), ("images", "masks"))
        both = next(
            (
                (self.path / i, self.path / m)
                for i, m in forms
                if (self.path / i).is_dir() and (self.path / m).is_dir()
            ),
            None,
        )
        if both is None:
            return {}
        whole = pair_folders(*both)
        lists = {
            split: self.path / f"{split}.txt" for split in SPLITS if (self.path / f"{split}.txt").is_file()
        }
        if lists:
            listed = {split: _select(whole, path) for split, path in lists.items()}
            first = next(iter(listed))
            wrong = (*whole.wrong, *listed[first].wrong)
            return {**listed, first: replace(listed[first], wrong=wrong)}
        alone = {path.stem: path for path in whole.images_alone}
        if not all(drive_of(name) in DRIVES for name in (*whole.pairs, *alone)):
            return {}
        table = {name: usual_split(name) for name in (*whole.pairs, *alone)}
        found = {
            split: _part(whole, {name for name, own in table.items() if own == split})
            for split in SPLITS
            if split in table.values()
        }
        if not found:
            whole.complete(self.path)
        first = next(iter(found))
        return {**found, first: replace(found[first], masks_alone=whole.masks_alone, wrong=whole.wrong)}


def drive_of(name: str) -> str:
    """Return the drive that a frame belongs to, e.g. `0006R0`."""
    return name.rpartition("/")[2].partition("_")[0]


def usual_split(name: str) -> str:
    """Return the split of a frame in the usual 367 / 101 / 233 division (Sturgess et al., 2009)."""
    drive, _, frame = name.partition("_")
    digits = "".join(character for character in frame if character.isdecimal())
    number = int(digits) if digits else 0
    if drive == "Seq05VD" or (drive == "0001TP" and number > 8520):
        return "test"
    return "val" if drive == "0016E5" and 7959 <= number <= 8159 else "train"


def _part(whole: Pairing, names: Collection[str]) -> Pairing:
    """Return the frames of some names, with or without masks."""
    return Pairing(
        pairs={name: files for name, files in whole.pairs.items() if name in names},
        images_alone=tuple(path for path in whole.images_alone if path.stem in names),
    )


def _select(whole: Pairing, path: Path) -> Pairing:
    """Return the frames that a list names, in its order."""
    names = list(dict.fromkeys(Path(row[0]).stem for row in read_list(path)))
    alone = {image.stem: image for image in whole.images_alone}
    return Pairing(
        pairs={name: whole.pairs[name] for name in names if name in whole.pairs},
        images_alone=tuple(alone[name] for name in names if name in alone),
        wrong=tuple(
            PairingProblem(path, f"list {path} names frame '{name}', which is not there; correct the list.")
            for name in names
            if name not in whole.pairs and name not in alone
        ),
    )


def _leave_out(found: Mapping[str, Pairing], fold: str) -> dict[str, Pairing]:
    parts = [found[split] for split in ("train", "val") if split in found]
    whole = Pairing(
        pairs={name: files for part in parts for name, files in part.pairs.items()},
        images_alone=tuple(path for part in parts for path in part.images_alone),
    )
    drives = {drive_of(name) for name in whole.pairs}
    if fold not in drives:
        raise unknown("CamVid drive", fold, drives)
    if len(drives) == 1:
        raise DataProblem(f"all frames are of drive '{fold}': leaving it out leaves nothing to train on.")
    names = {*whole.pairs, *(path.stem for path in whole.images_alone)}
    held = {name for name in names if drive_of(name) == fold}
    wrong = tuple(wrong for part in parts for wrong in part.wrong)
    return {"train": replace(_part(whole, names - held), wrong=wrong), "val": _part(whole, held)}

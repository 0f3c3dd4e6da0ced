"""Writes any segmentation dataset once as a folder of images and masks, the layout that `folder:` reads.

Everything is written to a temporary folder that is renamed at the end: after an error or Ctrl-C nothing is left.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, TypeAlias

import numpy as np
import yaml
from numpy.typing import NDArray
from PIL import Image

from segtailor.core.atomic import new_folder, write_json, write_text
from segtailor.core.codec import Json, read_json
from segtailor.core.errors import DataProblem, Unsupported, UserError
from segtailor.core.ownership import MARK, ForeignFile, has_fields
from segtailor.core.task import IGNORE, Colour, Task
from segtailor.data.dataset import Dataset, Sample
from segtailor.data.files import PICTURE_SUFFIXES, software_tag
from segtailor.data.splits import COMMON_NAMES

RECORD = "conversion.json"  # lists what was written, so that a later conversion may replace it
CLASS_FILE = "classes.yaml"
IGNORE_COLOUR: Colour = (224, 224, 192)  # of pixels that do not count, where a viewer shows the masks
SPLITS = ("train", "val", "test")
Images: TypeAlias = Literal["copy", "link"]


@dataclass(frozen=True, kw_only=True)
class Item:
    """One sample and the two files it becomes, relative to the folder that is written."""

    sample: Sample
    source: Path | None  # the picture's file, if it can be taken as it is
    image: PurePosixPath
    mask: PurePosixPath


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """What will be written where."""

    out: Path
    task: Task
    items: Mapping[str, tuple[Item, ...]]  # by split
    images: Images
    bands: int | None = None  # of pictures that are no RGB

    @property
    def files(self) -> list[str]:
        """All files, relative to the folder."""
        pairs = [
            str(path) for items in self.items.values() for item in items for path in (item.image, item.mask)
        ]
        return sorted([*pairs, CLASS_FILE, RECORD])

    def document(self) -> dict[str, Json]:
        """Return counts and paths as plain data."""
        return {
            "out": str(self.out),
            "dataset": f"folder:{self.out}" + (f"?bands={self.bands}" if self.bands else ""),
            "images": sum(len(items) for items in self.items.values()),
            "splits": {
                split: {
                    "images": len(items),
                    "image_folder": str(self.out / "images" / split),
                    "mask_folder": str(self.out / "masks" / split),
                }
                for split, items in self.items.items()
            },
            "classes": list(self.task.classes),
            "class_file": str(self.out / CLASS_FILE),
            "files": len(self.files),
        }


def plan_conversion(
    dataset: Dataset, out: Path, *, images: Images = "copy", force: bool = False
) -> Conversion:
    """Find out what a conversion writes, and refuse a folder that holds files of others."""
    if dataset.task.kind != "segmentation":
        raise Unsupported(f"masks are written for segmentation; this dataset is for {dataset.task.kind}.")
    bands = getattr(dataset, "bands", None)
    if bands is not None and getattr(dataset, "size", None) is not None:
        raise Unsupported(
            "data convert copies pictures of other bands as they are; leave out size=, and give it where the folder is "
            "used."
        )
    strange = [split for split in dataset.splits if split not in SPLITS]
    if strange:
        raise Unsupported(f"split '{strange[0]}' has no place in a folder; known are train, val and test.")
    _keep_apart(dataset, out)
    conversion = Conversion(
        out=out,
        task=dataset.task,
        items={split: _items(dataset.samples(split), split) for split in dataset.splits},
        images=images,
        bands=bands,
    )
    _refuse_others(conversion, force=force)
    return conversion


def convert(conversion: Conversion, *, progress: Callable[[int, int], None] | None = None) -> dict[str, Json]:
    """Write images, masks and the class list; the returned document has counts and paths, also pixels of each class."""
    total = sum(len(items) for items in conversion.items.values())
    counts = np.zeros(IGNORE + 1, np.int64)
    done = 0
    with new_folder(conversion.out, what="converted dataset") as folder:
        for items in conversion.items.values():
            for item in items:
                counts += _write(item, folder, conversion)
                done += 1
                if progress is not None:
                    progress(done, total)
        write_text(folder / CLASS_FILE, _class_list(conversion.task), what="class list")
        record = {"made_by": MARK, "files": conversion.files}
        write_json(folder / RECORD, record, what="record of the conversion")
    pixels = {name: int(count) for name, count in zip(conversion.task.classes, counts, strict=False)}
    return {**conversion.document(), "pixels": {**pixels}, "ignored_pixels": int(counts[IGNORE])}


def mask_picture(labels: NDArray[np.uint8], task: Task) -> Image.Image:
    """Return labels as a palette picture: its values are the labels, its colours those of the classes."""
    colours = [*task.palette, *[(0, 0, 0)] * (IGNORE - len(task.palette)), IGNORE_COLOUR]
    picture = Image.fromarray(labels).convert("L")
    picture.putpalette([channel for colour in colours for channel in colour])
    return picture


def _items(samples: Sequence[Sample], split: str) -> tuple[Item, ...]:
    items: list[Item] = []
    names: set[str] = set()
    for sample in samples:
        name = _file_name(sample.name, split)
        if name in names:
            raise DataProblem(
                f"split '{split}' has two samples called '{name}'; rename one of their pictures."
            )
        names.add(name)
        source = _source(sample)
        suffix = ".png" if source is None else source.suffix.lower()
        items.append(
            Item(
                sample=sample,
                source=source,
                image=PurePosixPath("images", split, f"{name}{suffix}"),
                mask=PurePosixPath("masks", split, f"{name}.png"),
            )
        )
    return tuple(items)


def _file_name(name: str, split: str) -> str:
    """Return a sample's name as a relative path without the folders `images` and of the split."""
    parts = list(PurePosixPath(name).parts)
    while len(parts) > 1 and (parts[0] == "images" or COMMON_NAMES.get(parts[0].lower()) == split):
        parts.pop(0)
    if not parts or parts[0].startswith("/") or ".." in parts or any(part.startswith(".") for part in parts):
        raise DataProblem(
            f"sample '{name[:100]}' cannot be the name of a file below a folder; rename its picture."
        )
    return "/".join(parts)


def _source(sample: Sample) -> Path | None:
    """Return the picture's file where it can be taken as it is: not resized, and of a kind that `folder:` lists."""
    path = getattr(sample, "image", None)
    if not isinstance(path, Path) or getattr(sample, "size", None) is not None:
        return None
    known = PICTURE_SUFFIXES | ({".npy"} if getattr(sample, "ranges", None) else set())
    return path if path.suffix.lower() in known else None


def _write(item: Item, folder: Path, conversion: Conversion) -> NDArray[np.int64]:
    """Write image and mask of one sample, and return how often each label occurs."""
    pair = item.sample.read()
    image, mask = folder / item.image, folder / item.mask
    image.parent.mkdir(parents=True, exist_ok=True)
    mask.parent.mkdir(parents=True, exist_ok=True)
    if item.source is None:
        Image.fromarray(pair.image).save(image, **software_tag("PNG"))
    elif conversion.images == "link":
        image.symlink_to(item.source.absolute())
    else:
        shutil.copyfile(item.source, image)
    mask_picture(pair.labels, conversion.task).save(mask, optimize=False, **software_tag("PNG"))
    return np.bincount(pair.labels.ravel(), minlength=IGNORE + 1).astype(np.int64)


def _class_list(task: Task) -> str:
    """Return the class list; colours are left out where two classes share one, which a class list may not."""
    rows: list[dict[str, Json]] = [{"name": name, "id": label} for label, name in enumerate(task.classes)]
    if len(set(task.palette)) == len(rows):
        for row, colour in zip(rows, task.palette, strict=True):
            row["colour"] = list(colour)
    document = {"classes": rows, "ignore": [IGNORE]}
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, default_flow_style=None)
    return f"# {MARK}\n{text}"


def _keep_apart(dataset: Dataset, out: Path) -> None:
    """Refuse to write into, onto or around the dataset that is read."""
    path = getattr(dataset, "path", None)
    if not isinstance(path, Path):
        return
    source = (path if path.is_dir() else path.parent).resolve()
    place = out.resolve()
    if place == source or (path.is_dir() and place.is_relative_to(source)) or source.is_relative_to(place):
        raise UserError(f"{out} and the dataset {path} lie inside of each other; choose a folder elsewhere.")


def _refuse_others(conversion: Conversion, *, force: bool) -> None:
    """Raise unless the folder is absent, empty, or holds only what an earlier conversion wrote.

    With `force`, files in the place of new ones are replaced; a folder that holds anything else is never replaced.
    """
    out = conversion.out
    if not os.path.lexists(out):
        return
    if out.is_symlink() or not out.is_dir():
        raise UserError(f"{out} is no folder; choose another name.")
    present = {
        path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_symlink() or not path.is_dir()
    }
    ours = _recorded(out)
    others = sorted(present - ours - (set(conversion.files) if force else set()))
    if not others:
        return
    more = f" (and {len(others) - 1} more)" if len(others) > 1 else ""
    remedy = "" if others[0] not in conversion.files else ", or add --force to replace it"
    raise ForeignFile(
        f"{out / others[0]}{more} is there already and was not written by segtailor, so it stays as it is. Choose "
        f"another folder, move it away{remedy}."
    )


def _recorded(out: Path) -> set[str]:
    """Return the files that an earlier conversion wrote."""
    record = out / RECORD
    if not has_fields("made_by", "files")(record):
        return set()
    document = read_json(record, what="record of the conversion")
    if document["made_by"] != MARK or not isinstance(document["files"], list):
        return set()
    return {name for name in document["files"] if isinstance(name, str)}

"""Tells which format a folder holds, from the names of its files and the beginnings of their content."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from segtailor.data.annotations.coco import OTHER_FILES, PLACES
from segtailor.data.annotations.yolo import CLASS_LISTS, yolo_file
from segtailor.data.files import list_folders, list_pictures
from segtailor.data.voc import voc_root

PEEK_BYTES = 2**16
MAX_FILES = 20  # looked into
MASKS = (
    "masks",
    "mask",
    "label",
    "annotation",
    "gt",
    "segmentation",
    "targets",
)  # folders of `folder:` alone
LABEL_FOLDERS = ("labels", "train/labels", "valid/labels", "val/labels", "labels/train", "labels/val")


def recognise(path: Path) -> str | None:
    """Return the name of the dataset that reads this folder or file; nothing where it holds masks, or nothing known."""
    if path.is_file():
        return _of_file(path)
    if voc_root(path) is not None:
        return "voc"
    folders = {folder.name.lower(): folder for folder in list_folders(path)}
    if "leftimg8bit" in folders and {"gtfine", "gtcoarse"} & folders.keys():
        return "cityscapes"
    if any(name in folders for name in MASKS) or _has_pictures_alone(folders.get("labels")):
        return None
    for file in annotation_files(path):
        found = _of_file(file)
        if found is not None:
            return found
    named = yolo_file(path) is not None or any((path / name).is_file() for name in CLASS_LISTS)
    labelled = any(any(True for _ in _files(path / place, "*.txt")) for place in LABEL_FOLDERS)
    return "yolo" if labelled or (named and yolo_file(path) is not None) else None


def annotation_files(path: Path) -> list[Path]:
    """Return files below a folder that may hold annotations by their suffix and place, the first few of each place."""
    places = ("*.xml", *PLACES, "*/*/*.json")
    return [file for place in places for file in islice(sorted(_files(path, place)), MAX_FILES)]


def _of_file(path: Path) -> str | None:
    """Return the format of one file by its suffix and the words in its first and last bytes."""
    suffix = path.suffix.lower()
    if suffix not in (".json", ".xml") or path.name.startswith(OTHER_FILES):
        return None
    head, tail = _ends(path)
    if suffix == ".xml":
        return "cvat" if b"<annotations" in head else None
    both = head + tail
    if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        return "labelstudio" if b'"annotations"' in both and b'"data"' in both else None
    if b'"shapes"' in both and b'"imagePath"' in both:
        return "labelme"
    words = (b'"images"', b'"annotations"', b'"categories"')
    return "coco" if sum(word in both for word in words) >= 2 else None


def _ends(path: Path) -> tuple[bytes, bytes]:
    try:
        with path.open("rb") as stream:
            head = stream.read(PEEK_BYTES)
            stream.seek(max(len(head), path.stat().st_size - PEEK_BYTES))
            return head, stream.read(PEEK_BYTES)
    except OSError:
        return b"", b""


def _files(folder: Path, pattern: str) -> Iterable[Path]:
    return (path for path in folder.glob(pattern) if path.is_file() and not path.name.startswith("."))


def _has_pictures_alone(folder: Path | None) -> bool:
    """Tell whether a folder holds pictures and no text: `labels` is a folder of masks then."""
    return folder is not None and bool(list_pictures(folder)) and not list_pictures(folder, {".txt", ".json"})

"""NYU Depth v2 (Silberman et al. 2012): a folder of pictures and 16-bit depth, or the labelled `.mat` file.

In a folder, `NAME_rgb.jpg` belongs to `NAME_depth_mm.png` (other endings below), directly inside or below `train`,
`val` and `test`. The `.mat` file is HDF5 (version 7.3) and is read with h5py, one picture at a time: `images` (n, 3,
width, height) and `depths` (n, width, height) in metres.

The official division (795 pictures train, 654 are scored) is the list `splits.mat` of the toolbox (version 5 or 7.3),
beside the `.mat` file. Without it, and where a share `val` is asked for, pictures are divided scene by scene:
neighbouring frames of one scene are nearly the same picture.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segtailor.core.errors import DataProblem, Unsupported, unknown
from segtailor.core.task import Task
from segtailor.data.dataset import Pair, Sample, resize_pair, size_fingerprint
from segtailor.data.depth_folder import COLOUR_FOLDERS, DEPTH_FOLDERS, DepthUnit, depth_task
from segtailor.data.files import MAX_PIXELS, file_fingerprint, list_folders, list_pictures
from segtailor.data.folder import UNDIVIDED, FolderLayout
from segtailor.data.mat5 import read_whole_numbers
from segtailor.data.pairs import DEFAULT_VAL_SHARE, FileDataset, Pairing, PairingProblem
from segtailor.data.recordings import divide_recordings, recordings
from segtailor.data.splits import COMMON_NAMES, TooFewImages, parts_of

IMAGE_ENDINGS = ("_rgb", "_colors", "_color", "_colour", "_image")
DEPTH_ENDINGS = ("_depth_mm", "_depth", "_depths")
MAX_FRAMES = 1_000_000  # pictures in one file; the published one has 1449
MAX_CHUNK_BYTES = 2**30  # bytes that HDF5 unpacks at a time
HDF5_START, HDF5_MARK = 512, b"\x89HDF\r\n\x1a\n"  # behind the header that MATLAB writes
SPLITS_FILE, TRAIN_LIST, TEST_LIST = "splits.mat", "trainNdxs", "testNdxs"  # of the toolbox; numbers from 1
MAX_SCENE_CHARACTERS = 200
SPAN_METRES = (0.1, 10.0)  # metres that the sensor measures


@dataclass(frozen=True, kw_only=True)
class Nyudv2(FileDataset):
    """Indoor depth: a folder of `NAME_rgb.jpg` and `NAME_depth_mm.png`, or the labelled .mat file (needs h5py).

    Where files are not divided, `val` is drawn by `seed`, scene by scene; `splits.mat` beside the .mat file gives the
    official split.
    """

    val: float | None = None
    seed: int = 0

    @property
    def task(self) -> Task:
        """Depth up to ten metres."""
        return depth_task(*SPAN_METRES)

    @property
    def labels(self) -> DepthUnit:
        """Millimetres."""
        return DepthUnit()

    def find(self) -> Mapping[str, Pairing]:
        """Match pictures by the endings of their names, or by folders `rgb` and `depth`; a .mat file has no pairs."""
        if self._is_mat:
            return {}
        named = {COMMON_NAMES.get(place.name.lower()): place for place in list_folders(self.path)}
        names = {place.name.lower() for place in list_folders(self.path)}
        if names & set(COLOUR_FOLDERS) and names & set(DEPTH_FOLDERS):
            layout = FolderLayout(path=self.path, image_folders=COLOUR_FOLDERS, mask_folders=DEPTH_FOLDERS)
            found: Mapping[str, Pairing] = layout.find()
        elif "train" in named:
            found = {split: _by_ending(named[split]) for split in ("train", "val", "test") if split in named}
        else:
            found = {UNDIVIDED: _by_ending(self.path)}
        if UNDIVIDED not in found:
            return found
        whole = found[UNDIVIDED]
        try:
            table = self._divided({name: name for name in whole.pairs})
        except TooFewImages as problem:
            return {"train": replace(whole, wrong=(*whole.wrong, PairingProblem(self.path, str(problem))))}
        parts = {
            split: Pairing(pairs={name: whole.pairs[name] for name in names})
            for split, names in table.items()
        }
        return {**parts, "train": replace(whole, pairs=parts["train"].pairs)}

    def _divided(self, names: Mapping[str, str]) -> dict[str, list[str]]:
        """Divide pictures, given with the names of their scenes, scene by scene."""
        known = recordings(list(names.values())) if len(set(names.values())) == len(names) else None
        # Numbered pictures without scenes are frames of recordings in their order: they are cut once.
        labels = names if known is None else {name: known.get(name, "") for name in names}
        share = DEFAULT_VAL_SHARE if self.val is None else self.val
        return divide_recordings(labels, val=share, seed=self.seed)

    @property
    def pairings(self) -> Mapping[str, Pairing]:
        """The files of every split; none for a .mat file."""
        return {} if self._is_mat else super().pairings

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(self._frames) if self._is_mat else super().splits

    def samples(self, split: str) -> tuple[Any, ...]:
        """Return the samples of a split, of several joined by `+`, or of `trainval`."""
        if not self._is_mat:
            return super().samples(split)
        return tuple(sample for part in parts_of(split, self.splits) for sample in self._frames[part])

    @property
    def _is_mat(self) -> bool:
        return self.path.is_file()

    @cached_property
    def _frames(self) -> Mapping[str, Sequence[Sample]]:
        count = _frames_in(self.path)
        size = self.wanted_size
        frames = {f"{index:04d}": MatSample(file=self.path, index=index, size=size) for index in range(count)}
        for name in self.skip:
            if name not in frames:
                raise unknown("sample to skip", name, frames)
        kept = tuple(name for name in frames if name not in self.skip)
        official = None if self.val is not None else official_split(self.path.parent / SPLITS_FILE, count)
        if official is None:
            scenes = _scenes_in(self.path, count)
            table = self._divided({name: scenes[int(name)] if scenes else name for name in kept})
        else:
            table = {
                split: [f"{number:04d}" for number in numbers if f"{number:04d}" in kept]
                for split, numbers in official.items()
            }
        return {split: tuple(frames[name] for name in names) for split, names in table.items()}


@dataclass(frozen=True, kw_only=True)
class MatSample:
    """One picture of the labelled .mat file."""

    file: Path
    index: int
    size: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        """The number of the picture, from 0."""
        return f"{self.index:04d}"

    @property
    def fingerprint(self) -> str:
        """The file, the number of the picture, and the requested size."""
        return f"{file_fingerprint(self.file)}|{self.index}|depth{size_fingerprint(self.size)}"

    @property
    def place(self) -> str:
        """The file and the number."""
        return f"{self.file}, picture {self.name}"

    @property
    def source(self) -> None:
        """None: the sample is a whole picture."""

    def read(self) -> Pair:
        """Read picture and depth; the file stores both transposed."""
        with _opened(self.file) as content:
            images, depths = _arrays(content, self.file)
            if self.index >= images.shape[0]:
                raise DataProblem(f"{self.file} changed while it was read: picture {self.index} is gone.")
            image = np.asarray(images[self.index]).transpose(2, 1, 0)
            depth = np.asarray(depths[self.index], dtype=np.float32).T
        known = np.isfinite(depth) & (depth > 0)
        pair = Pair(np.ascontiguousarray(image, dtype=np.uint8), np.where(known, depth, np.float32(0)))
        return resize_pair(pair, self.size)


def official_split(file: Path, count: int) -> dict[str, list[int]] | None:
    """Return the numbers, from 0, of the pictures that train and that are scored; None where the list is not there."""
    if not file.is_file():
        return None
    names = (TRAIN_LIST, TEST_LIST)
    lists = _hdf5_lists(file, names) if _is_hdf5(file) else read_whole_numbers(file, names)
    numbers = {split: lists.get(name) for split, name in (("train", TRAIN_LIST), ("val", TEST_LIST))}
    table = {
        split: [int(number) - 1 for number in held] for split, held in numbers.items() if held is not None
    }
    every = [number for held in table.values() for number in held]
    if len(table) < 2 or not all(table.values()) or len(set(every)) != len(every):
        raise DataProblem(
            f"{file} does not hold {TRAIN_LIST} and {TEST_LIST}, each picture once; fetch it again."
        )
    if min(every) < 0 or max(every) >= count:
        raise DataProblem(
            f"{file} names picture {max(every) + 1}, and there are {count}; fetch both files again."
        )
    return table


def _is_hdf5(file: Path) -> bool:
    """Tell whether a file of MATLAB is of version 7.3: its HDF5 part then follows the header."""
    with file.open("rb") as content:
        return content.read(HDF5_START + len(HDF5_MARK)).endswith(HDF5_MARK)


def _hdf5_lists(file: Path, names: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    """Return the named lists of whole numbers; names that the file lacks are left out."""
    found: dict[str, NDArray[np.int64]] = {}
    with _opened(file) as content:
        for name in names:
            array = _dataset(content, name, file)
            if array is None:
                continue
            values = array[()].reshape(-1) if array.dtype.kind in "uif" and array.size <= MAX_FRAMES else None
            if values is None or not np.isfinite(values).all() or (values != np.round(values)).any():
                raise DataProblem(f"{file}: its {name} is no list of whole numbers; fetch the file again.")
            found[name] = values.astype(np.int64)
    return found


def _scenes_in(file: Path, count: int) -> list[str]:
    """Return the name of the scene of every picture, where the .mat file has them."""
    import h5py

    with _opened(file) as content:
        array = _dataset(content, "scenes", file)
        if array is None or array.dtype.kind != "O" or array.size != count:
            return []
        names = []
        for reference in array[()].reshape(-1):
            held = content[reference] if isinstance(reference, h5py.Reference) else None
            plain = isinstance(held, h5py.Dataset) and not held.external and not held.is_virtual
            if held is None or not plain or held.size > MAX_SCENE_CHARACTERS or held.dtype.kind != "u":
                raise DataProblem(f"{file}: its scenes are not names; fetch the file again.")
            names.append("".join(map(chr, held[()].reshape(-1).tolist())))
        return names


def _frames_in(file: Path) -> int:
    """Check the arrays of a .mat file and return the number of its pictures."""
    with _opened(file) as content:
        images, _ = _arrays(content, file)
        return int(images.shape[0])


def _arrays(content: Any, file: Path) -> tuple[Any, Any]:
    """Return the two arrays of a file, neither read yet; their sizes and where their bytes lie are checked."""
    images, depths = (_dataset(content, name, file) for name in ("images", "depths"))
    many: tuple[int, ...] = getattr(images, "shape", None) or ()
    deep: tuple[int, ...] = getattr(depths, "shape", None) or ()
    fits = len(many) == 4 and many[1] == 3 and deep == (many[0], *many[2:]) and 0 < many[0] <= MAX_FRAMES
    if not fits or not 0 < many[2] * many[3] <= MAX_PIXELS:
        raise DataProblem(
            f"{file} holds images {many} and depths {deep}, not (n, 3, width, height) and (n, width, height). "
            "Give the labelled part of NYU Depth v2."
        )
    for array, kinds in ((images, "u"), (depths, "fu")):
        chunk = math.prod(array.chunks or (1,)) * array.dtype.itemsize
        if array.dtype.kind not in kinds or array.dtype.itemsize > 8 or chunk > MAX_CHUNK_BYTES:
            raise DataProblem(
                f"{file}: its {array.name.strip('/')} hold {array.dtype} in blocks of {chunk} bytes; expected are "
                f"plain numbers in blocks of at most {MAX_CHUNK_BYTES}. Fetch it again."
            )
    return images, depths


def _dataset(content: Any, name: str, file: Path) -> Any:
    """Return an array stored in the file itself, or None where there is none of this name.

    HDF5 arrays can refer to other files (links, external storage, virtual arrays). A downloaded file could use that to
    read any file of this machine into the training data, so such arrays are refused.
    """
    import h5py

    link = content.get(name, getlink=True)
    if link is None:
        return None
    array = content.get(name) if isinstance(link, h5py.HardLink) else None
    if not isinstance(array, h5py.Dataset) or array.external or array.is_virtual:
        raise DataProblem(
            f"{file}: its {name} do not lie in the file itself but are linked from elsewhere; nothing there was read. "
            "Fetch the file again."
        )
    return array


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        import h5py
    except ImportError:
        raise Unsupported(
            f"{file} is an HDF5 file, and the package h5py is not installed: `pip install 'segtailor[nyu]'`, or give a "
            "folder of pictures and depth maps."
        ) from None
    try:
        with h5py.File(file, "r") as content:
            yield content
    except (
        OSError,
        RuntimeError,
        LookupError,
        ValueError,
        TypeError,
    ) as problem:  # what h5py raises on damage
        reason = " ".join(str(problem).split())
        raise DataProblem(
            f"{file} cannot be read as a .mat file of version 7.3: {reason}. Fetch it again."
        ) from None


def _by_ending(folder: Path) -> Pairing:
    """Match pictures below a folder whose names differ only in their ending."""
    images: dict[str, Path] = {}
    depths: dict[str, Path] = {}
    for path in list_pictures(folder):
        stem = path.relative_to(folder).with_suffix("").as_posix()
        for endings, table in ((DEPTH_ENDINGS, depths), (IMAGE_ENDINGS, images)):
            ending = next((ending for ending in endings if stem.endswith(ending)), None)
            if ending is not None:
                table[stem.removesuffix(ending)] = path
                break
    if not images and not depths:
        raise DataProblem(
            f"{folder} holds no pictures named like NAME_rgb.jpg and NAME_depth_mm.png; check the path, or use "
            "folder:PATH?task=depth for another layout."
        )
    return Pairing(
        pairs={name: (images[name], depths[name]) for name in images if name in depths},
        images_alone=tuple(path for name, path in images.items() if name not in depths),
        masks_alone=tuple(path for name, path in depths.items() if name not in images),
    )

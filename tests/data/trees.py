"""Tiny dataset trees that tests write themselves."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIZE = (6, 8)  # height, width


def rng_of(path: Path) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(path.name.encode()))


def write(path: Path, values: NDArray[np.generic], mode: str | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(values)
    (picture.convert(mode) if mode else picture).save(path)
    return path


def write_image(path: Path, size: tuple[int, int] = SIZE) -> Path:
    return write(path, rng_of(path).integers(0, 256, (*size, 3), dtype=np.uint8))


def write_mask(path: Path, ids: Sequence[int] = (0, 1, 2), size: tuple[int, int] = SIZE) -> Path:
    """Write a greyscale mask in which the ids alternate, so that each occurs."""
    return write(path, cycle(ids, size))


def cycle(ids: Sequence[int], size: tuple[int, int] = SIZE) -> NDArray[np.uint8]:
    return np.resize(np.array(ids, dtype=np.uint8), size)


def write_colours(path: Path, colours: Sequence[tuple[int, int, int]], size: tuple[int, int] = SIZE) -> Path:
    table = np.array(colours, dtype=np.uint8)
    return write(path, table[cycle(range(len(colours)), size)])


def write_palette_mask(
    path: Path, ids: Sequence[int], colours: Sequence[tuple[int, int, int]], size: tuple[int, int] = SIZE
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(cycle(ids, size), mode="P")
    picture.putpalette([channel for colour in colours for channel in colour])
    picture.save(path)
    return path


def write_pairs(root: Path, names: Sequence[str], ids: Sequence[int] = (0, 1, 2), *, split: str = "") -> Path:
    for name in names:
        write_image(root / "images" / split / f"{name}.png")
        write_mask(root / "masks" / split / f"{name}.png", ids)
    return root

"""Some samples of a decoded split, made smaller in memory; and groups of samples that belong together.

Frames of one recording are nearly the same picture. What is divided by groups keeps them on one side, as new pictures
of a user come from new places.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from segtailor.core.errors import DataProblem
from segtailor.core.memory import check_memory
from segtailor.data.cache import Pixels
from segtailor.data.dataset import Pair, resize_pair

MIN_GROUP = 2.0  # images per group on average; otherwise a name's beginning is a running number


def take(pixels: Pixels, indices: Sequence[int], *, max_pixels: int | None = None) -> Pixels:
    """Return these samples as a split of its own, in memory; larger images are reduced to `max_pixels`."""
    pairs = [_smaller(pixels.pair(index), max_pixels) for index in indices]
    if not pairs:
        raise DataProblem("no images are left to train on; give more images.")
    total = sum(pair.image.nbytes + pair.labels.nbytes for pair in pairs)
    check_memory(total, what=f"{len(pairs)} images", remedy="Use fewer or smaller images.")
    chosen = hashlib.sha256(
        f"{pixels.fingerprint}:{max_pixels}:{list(map(int, indices))}".encode()
    ).hexdigest()[:32]
    return replace(
        pixels,
        names=tuple(pixels.names[index] for index in indices),
        sizes=np.array([pair.image.shape[:2] for pair in pairs], np.int64),
        fingerprint=chosen,
        images=np.concatenate([pair.image.ravel() for pair in pairs]),
        labels=np.concatenate([pair.labels.ravel() for pair in pairs]),
        samples=tuple(pixels.samples[index] for index in indices)
        if pixels.samples and max_pixels is None
        else (),
    )


def groups_of(names: Sequence[str]) -> list[str]:
    """Return the group of each sample: its folder, or the beginning of its name that many others share."""
    for key in (_folder, _prefix):
        found = [key(name) for name in names]
        if 1 < len(set(found)) <= len(names) / MIN_GROUP:
            return found
    return ["all"] * len(names)


def grouped_subset(names: Sequence[str], count: int, *, seed: int) -> list[int]:
    """Choose `count` samples as they would have been collected: group after group in random order.

    Where there are fewer than eight groups, runs of neighbours are taken instead. Larger subsets of one seed contain
    the smaller ones.
    """
    groups = groups_of(names)
    rng = np.random.default_rng(seed)
    by_group: dict[str, list[int]] = {}
    for index in sorted(range(len(names)), key=lambda index: names[index]):
        by_group.setdefault(groups[index], []).append(index)
    runs = list(by_group.values())
    if len(runs) < 8:
        length = max(1, math.ceil(len(names) / 24))
        runs = [
            members[start : start + length] for members in runs for start in range(0, len(members), length)
        ]
    ordered = [index for place in rng.permutation(len(runs)) for index in runs[place]]
    return sorted(ordered[:count])


def _smaller(pair: Pair, max_pixels: int | None) -> Pair:
    height, width = pair.image.shape[:2]
    if max_pixels is None or height * width <= max_pixels:
        return pair
    scale = math.sqrt(max_pixels / (height * width))
    return resize_pair(pair, (max(1, round(height * scale)), max(1, round(width * scale))))


def smaller_image(image: NDArray[np.uint8], max_pixels: int) -> NDArray[np.uint8]:
    """Return an image reduced to `max_pixels`."""
    return _smaller(Pair(image, np.zeros(image.shape[:2], np.uint8)), max_pixels).image


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


def _prefix(name: str) -> str:
    return re.split(r"[_\-. ]", name.rpartition("/")[2], maxsplit=1)[0]

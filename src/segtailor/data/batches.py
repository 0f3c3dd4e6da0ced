"""Augmented training batches on a device from decoded pixels; `at(step)` depends on seed and step only.

All pixels are kept on the device if they fit; otherwise each batch is gathered on the host, one batch ahead.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segtailor.core.errors import DataProblem, UserError
from segtailor.core.memory import check_memory
from segtailor.core.memory import free_memory as free_main_memory
from segtailor.core.task import Preprocessing
from segtailor.data.augment import (
    LABELS,
    Augment,
    BatchDraws,
    Styles,
    draw,
    draw_classes,
    image_styles,
    paste,
    resample,
    restyle,
)
from segtailor.data.bands import WINDOW_SIDE_PIXELS
from segtailor.data.cache import Pixels
from segtailor.data.dataset import Pair
from segtailor.data.large import LargePixels
from segtailor.tasks.pose.crops import Variation
from segtailor.tasks.segmentation.kind import Labels
from segtailor.tasks.targets import Targets

BATCH_BYTES_PER_PIXEL = 36  # three channels in single precision: sampled, recoloured and normalised
IMAGES_PER_COPY = 64  # copied to the device at a time, so that little host memory is needed
# Separate random streams: order of images, augmentation, classes to paste, style of another image, cuts of people.
ORDER, LOOKS, MIX, STYLE, CUTS = range(5)
MAX_CUTTING_THREADS = 8


class Batch(NamedTuple):
    """Normalised images (batch, 3, h, w) float32 and targets, e.g. labels (batch, h, w) uint8 with 255 ignored."""

    images: Tensor
    labels: Tensor


@runtime_checkable
class Recut(Protocol):
    """A sample that is cut out of a larger original, e.g. a person in a picture, and can be cut differently."""

    def original(self) -> Any:
        """Decode the original."""

    def recut(self, original: Any, variation: Variation, /) -> Pair:
        """Return the sample cut out of the scaled, turned and mirrored original."""


@dataclass(kw_only=True, eq=False, repr=False)
class Batches:
    """Endless training batches; `batch` counts all processes, of which this one gets its share.

    `images` (n, height, width, 3) in uint8 and `labels`, (n, height, width) for segmentation, are arrays or memory
    maps, `sizes` (n, 2) the valid extent of each image from its top left corner; `targets` says how labels are stored.
    Sample k of the endless stream is image `k mod n` of the permutation of epoch `k div n`: every image is used once
    per epoch and none is dropped. Nothing depends on the device, the number of processes or where a run was resumed.
    `memory` is the share of the device's free memory that pixels may take. With `recut`, the samples themselves, every
    batch is cut out of the originals anew, and `images` is not used. With `large`, windows of its pictures are read for
    each batch: `images` has only their number, and `labels` what the windows of `LargePixels.glances` show.
    """

    images: NDArray[np.uint8]
    labels: NDArray[Any]
    sizes: NDArray[np.integer]
    augment: Augment
    targets: Targets = LABELS
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    batch: int
    seed: int
    device: torch.device
    rank: int = 0
    world: int = 1
    memory: float = 0.5
    recut: Sequence[Recut] = ()
    large: LargePixels | None = None
    _source: _Source = field(init=False, repr=False)
    _styles: Styles | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if len(self.images) == 0:
            raise DataProblem("the training split is empty; check the dataset's path and splits.")
        if self.batch < 1 or self.batch % self.world:
            raise UserError(
                f"a batch of {self.batch} cannot be divided among {self.world} processes; "
                f"use a multiple of {self.world}."
            )
        if self.augment.mix and not isinstance(self.targets, Labels):
            raise UserError("augment.mix pastes classes, and this task has none; leave it out.")
        if self.augment.mix and self.world > 1 and self.batch // self.world % 2:
            raise UserError(
                f"augment.mix exchanges pixels between pairs of images, and {self.batch // self.world} images per "
                f"process are odd; use a batch that is a multiple of {2 * self.world}."
            )
        self._check_memory()
        if self.augment.restyle:
            self._styles = (
                image_styles(self.images, self.sizes) if self.large is None else _large_styles(self.large)
            )
        if self.large is not None:
            self._source = _Windowed(self, self.large)
            return
        if self.recut:
            self._source = _Cut(self)
            return
        need = self.images.nbytes + self.labels.nbytes
        fits = need <= self.memory * free_memory(self.device)
        self._source = _Resident(self) if fits else _Streamed(self)

    def _check_memory(self) -> None:
        """Refuse a batch whose pixels alone do not fit."""
        height, width = self.augment.crop
        share = self.batch // self.world
        spread = 0.0 if self.large is None else 2 * (self.large.channels + 1) / self._least_scale**2
        check_memory(
            int(share * height * width * (BATCH_BYTES_PER_PIXEL + spread)),
            what=f"a batch of {share} crops of {height}x{width}",
            remedy="Choose a smaller batch (--batch) or smaller crops (--crop).",
            free=free_memory(self.device),
        )

    @property
    def _least_scale(self) -> float:
        return min(self.augment.scales or self.augment.scale[:1])

    @property
    def steps_per_epoch(self) -> int:
        """Steps after which every image was used; the last batch may also hold images of the next epoch."""
        return -(-len(self.images) // self.batch)

    @property
    def resident(self) -> bool:
        """Whether the pixels are kept on the device."""
        return isinstance(self._source, _Resident)

    def at(self, step: int) -> Batch:
        """Return this process's share of the batch of `step`."""
        drawn = self._drawn(step).part(self._mine)
        images, labels, index = self._source.pixels(step)
        found = resample(
            images,
            labels,
            index=index,
            drawn=drawn if self.large is None else within(drawn, window_edges(drawn)),
            preprocessing=self.preprocessing,
            targets=self.targets,
        )
        if not self.augment.mix:
            return Batch(*found)
        rng = np.random.default_rng([MIX, self.seed, step])
        classes = draw_classes(self.batch, share=self.augment.mix, rng=rng)[self._mine]
        return Batch(*paste(*found, classes=classes))

    def _drawn(self, step: int) -> BatchDraws:
        """Draw the augmentation of the whole batch."""
        chosen = self.chosen(step)
        rng = np.random.default_rng([LOOKS, self.seed, step])
        augment = self.augment.of_colours if self.recut else self.augment
        drawn = draw(augment, self.sizes[chosen], rng=rng, mean=self.preprocessing.mean)
        if self._styles is None:
            return drawn
        rng = np.random.default_rng([STYLE, self.seed, step])
        others = rng.integers(len(self.images), size=self.batch)
        strength = self.augment.restyle * rng.random(self.batch)
        colour = restyle(drawn.colour, self._styles.of(chosen), self._styles.of(others), strength=strength)
        return drawn._replace(colour=colour)

    def variations(self, step: int) -> list[Variation]:
        """Return how this process's share of the batch of `step` is cut out of the originals."""
        augment = self.augment
        chance = np.random.default_rng([CUTS, self.seed, step]).random((self.batch, 3))[self._mine]
        low, high = augment.scale
        return [
            Variation(
                zoom=augment.scales[int(size * len(augment.scales))]
                if augment.scales
                else low + size * (high - low),
                degrees=augment.rotate * (2 * turn - 1),
                mirrored=bool(side < augment.flip),
            )
            for size, turn, side in chance.tolist()
        ]

    def share(self, step: int) -> NDArray[np.int64]:
        """Return the indices of the images that this process gets at `step`."""
        return self.chosen(step)[self._mine]

    def chosen(self, step: int) -> NDArray[np.int64]:
        """Return the indices of all images in the batch of `step`, over all processes."""
        count = len(self.images)
        stream = np.arange(step * self.batch, (step + 1) * self.batch)
        epochs, places = np.divmod(stream, count)
        chosen = np.empty_like(stream)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            chosen[here] = _order(self.seed, int(epoch), count)[places[here]]
        return chosen

    @property
    def _mine(self) -> slice:
        share = self.batch // self.world
        return slice(self.rank * share, (self.rank + 1) * share)


def batches_of(
    pixels: Pixels | LargePixels, augment: Augment, preprocessing: Preprocessing, *, device: torch.device
) -> partial[Batches]:
    """Return `Batches` of a decoded split or of large pictures, still without batch size and seed."""
    if isinstance(pixels, LargePixels):
        return partial(
            Batches,
            images=np.zeros((len(pixels), 1, 1, pixels.channels), np.uint8),
            labels=np.concatenate([_flat_labels(glance) for glance in pixels.glances()]),
            sizes=pixels.sizes,
            targets=pixels.targets,
            augment=augment,
            preprocessing=preprocessing,
            device=device,
            large=pixels,
        )
    images, labels = pixels.canvas()
    cuts = [sample for sample in pixels.samples if isinstance(sample, Recut)] if augment.from_picture else []
    return partial(
        Batches,
        images=images,
        labels=labels,
        sizes=pixels.sizes,
        targets=pixels.targets,
        augment=augment,
        preprocessing=preprocessing,
        device=device,
        recut=cuts if len(cuts) == len(pixels) else (),
    )


def free_memory(device: torch.device) -> int:
    """Return the free memory of a device, in bytes."""
    if device.type == "cpu":
        return free_main_memory()
    free, _ = torch.get_device_module(device).mem_get_info(device)
    return int(free)


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    return np.random.default_rng([ORDER, seed, epoch]).permutation(count)


class _Source(Protocol):
    def pixels(self, step: int) -> tuple[Tensor, Tensor, NDArray[np.int64]]:
        """Return images (n, 3, h, w) and labels (n, h, w) on the device, and the indices of those that `step` uses."""


class _Resident:
    """All pixels on the device, one plane per channel: sampling then reads whole lines."""

    def __init__(self, owner: Batches) -> None:
        count, height, width, channels = owner.images.shape
        self.owner = owner
        self.images = torch.empty((count, channels, height, width), dtype=torch.uint8, device=owner.device)
        like = torch.from_numpy(np.array(owner.labels[:1]))
        self.labels = torch.empty(owner.labels.shape, dtype=like.dtype, device=owner.device)
        for start in range(0, count, IMAGES_PER_COPY):
            here = slice(start, start + IMAGES_PER_COPY)
            self.images[here] = (
                torch.from_numpy(np.array(owner.images[here])).to(owner.device).permute(0, 3, 1, 2)
            )
            self.labels[here] = torch.from_numpy(np.array(owner.labels[here])).to(owner.device)

    def pixels(self, step: int) -> tuple[Tensor, Tensor, NDArray[np.int64]]:
        """See `_Source`."""
        return self.images, self.labels, self.owner.share(step)


class _Streamed:
    """Gathers one batch at a time from the memory map; a thread gathers the next one meanwhile."""

    def __init__(self, owner: Batches) -> None:
        self.owner = owner
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self.ahead: tuple[int, Future[tuple[Tensor, Tensor]]] | None = None

    def pixels(self, step: int) -> tuple[Tensor, Tensor, NDArray[np.int64]]:
        """See `_Source`."""
        ready = self.ahead[1].result() if self.ahead and self.ahead[0] == step else self._gather(step)
        self.ahead = step + 1, self.thread.submit(self._gather, step + 1)
        images, labels = (pixels.to(self.owner.device, non_blocking=True) for pixels in ready)
        return images.permute(0, 3, 1, 2).contiguous(), labels, np.arange(len(labels))

    def _gather(self, step: int) -> tuple[Tensor, Tensor]:
        images, labels = (torch.from_numpy(part) for part in self.read(step))
        if self.owner.device.type == "cpu":
            return images, labels
        return images.pin_memory(), labels.pin_memory()

    def read(self, step: int) -> tuple[NDArray[np.uint8], NDArray[Any]]:
        """Return the images and targets of this process's share of a batch."""
        chosen = self.owner.share(step)
        return self.owner.images[chosen], self.owner.labels[chosen]


class _Windowed(_Streamed):
    """Reads the windows of large pictures that the crops of a batch are cut from."""

    def __init__(self, owner: Batches, large: LargePixels) -> None:
        super().__init__(owner)
        self.large = large
        self.readers = ThreadPoolExecutor(min(MAX_CUTTING_THREADS, os.cpu_count() or 1), "windows")

    def read(self, step: int) -> tuple[NDArray[np.uint8], NDArray[Any]]:
        """See `_Streamed`; windows of different sizes are padded, and nothing is read of the padding."""
        edges = window_edges(self.owner._drawn(step).part(self.owner._mine))
        places = zip(self.owner.share(step).tolist(), edges.tolist(), strict=True)
        pairs = list(self.readers.map(lambda place: self.large.window(place[0], *place[1]), places))
        height, width = (max(pair.labels.shape[axis] for pair in pairs) for axis in (0, 1))
        images = np.zeros((len(pairs), height, width, self.large.channels), np.uint8)
        labels = np.full((len(pairs), height, width), self.large.targets.missing, pairs[0].labels.dtype)
        for index, pair in enumerate(pairs):
            rows, columns = pair.labels.shape
            images[index, :rows, :columns], labels[index, :rows, :columns] = pair
        return images, labels


def window_edges(drawn: BatchDraws) -> NDArray[np.int64]:
    """Return what the crops of a batch need of their sources: (images, 4) top, bottom, left, right."""
    return np.stack(
        [
            drawn.rows.low.min(axis=1),
            drawn.rows.high.max(axis=1) + 1,
            drawn.columns.low.min(axis=1),
            drawn.columns.high.max(axis=1) + 1,
        ],
        axis=1,
    ).astype(np.int64)


def within(drawn: BatchDraws, edges: NDArray[np.int64]) -> BatchDraws:
    """Return the same draws for windows instead of whole sources."""
    rows, columns = (
        taps._replace(
            **{name: getattr(taps, name) - begin.astype(np.int32) for name in ("low", "high", "nearest")}
        )
        for taps, begin in ((drawn.rows, edges[:, 0:1]), (drawn.columns, edges[:, 2:3]))
    )
    lines = drawn.lines.copy()
    lines[:, 0] -= edges[:, 0]
    lines[:, 2] -= edges[:, 2]
    return drawn._replace(rows=rows, columns=columns, lines=lines)


def _large_styles(large: LargePixels) -> Styles:
    """Measure large pictures on windows spread over them."""
    rows = []
    for glance in large.glances():
        flat = np.concatenate([pair.image.reshape(1, -1, large.channels) for pair in glance], axis=1)
        rows.append(image_styles(flat[:, None], np.array([[1, flat.shape[1]]])))
    return Styles(*(np.concatenate(values) for values in zip(*rows, strict=True)))


def _flat_labels(glance: list[Pair]) -> NDArray[Any]:
    """Return the labels of windows as rows of one length."""
    flat = np.concatenate([pair.labels.ravel() for pair in glance])
    side = WINDOW_SIDE_PIXELS
    return np.resize(flat, (max(1, len(flat) // side**2), side, side))


class _Cut(_Streamed):
    """Cuts every sample out of its original anew; decoded originals are kept as far as memory allows."""

    def __init__(self, owner: Batches) -> None:
        super().__init__(owner)
        self.cutters = ThreadPoolExecutor(min(MAX_CUTTING_THREADS, os.cpu_count() or 1), "cuts")
        self.kept: dict[int, Any] = {}
        self.spare = int(owner.memory * free_main_memory())  # bytes

    def read(self, step: int) -> tuple[NDArray[np.uint8], NDArray[Any]]:
        """See `_Streamed`."""
        wanted = zip(self.owner.share(step).tolist(), self.owner.variations(step), strict=True)
        pairs = list(self.cutters.map(lambda one: self._cut(*one), wanted))
        return np.stack([pair.image for pair in pairs]), np.stack([pair.labels for pair in pairs])

    def _cut(self, index: int, variation: Variation) -> Pair:
        sample = self.owner.recut[index]
        original = self.kept.get(index)
        if original is None:
            original = sample.original()
            size = int(getattr(original.image, "nbytes", 0))
            if 0 < size <= self.spare:
                self.spare -= size
                self.kept[index] = original
        return sample.recut(original, variation)

"""Evaluation at full resolution: whole images at their own size, scored by the meter of the task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from segtailor.core.errors import UserError
from segtailor.core.memory import check_memory
from segtailor.core.task import Preprocessing, Task
from segtailor.data.batches import free_memory
from segtailor.data.dataset import Pair
from segtailor.data.large import LargePixels
from segtailor.data.tiles import Scores as TileScores
from segtailor.data.tiles import Tiling, label_bands
from segtailor.nets.inference import class_probabilities, inference, normalise, predict
from segtailor.tasks import Scores, kind_of
from segtailor.tasks.kind import KnowsSamples, Meter
from segtailor.training.distributed import share_buffers, sum_over_processes, world
from segtailor.training.threads import chosen_threads


class LabelledImages(Protocol):
    """Decoded samples of any sizes (`data.cache.Pixels`)."""

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Height and width of each sample, (n, 2)."""

    def __len__(self) -> int: ...

    def pair(self, index: int) -> Pair:
        """Return one sample."""


def evaluate(
    network: nn.Module,
    samples: LabelledImages,
    *,
    task: Task,
    preprocessing: Preprocessing,
    device: torch.device,
    batch: int = 8,
) -> Scores:
    """Score the main output on every image; images of one size share a batch, and processes share the images."""
    if batch < 1:
        raise UserError(f"batch: {batch} is too small; give 1 or more images at a time.")
    if isinstance(samples, LargePixels):

        def scores(image: NDArray[np.uint8]) -> NDArray[np.float32]:
            return class_probabilities(network, image, preprocessing=preprocessing, device=device)

        share_buffers(network)
        with chosen_threads(device):
            return score_tiles(scores, samples, Tiling(), task=task)
    if len(samples):
        most, pixels = min(batch, len(samples)), int(samples.sizes.prod(axis=1).max())
        check_memory(
            4 * most * pixels * (3 + task.outputs),  # bytes: the images and their scores in single precision
            what=f"scoring {most} images of {pixels:,} pixels at once",
            remedy="Choose a smaller batch (--batch).",
            free=free_memory(device),
        )
    meter = kind_of(task).meter(task, device)
    share_buffers(network)
    order: list[int] = []
    with inference(network), chosen_threads(device):
        for indices in group_by_size(samples.sizes, batch=batch, part=world()):
            pairs = [samples.pair(index) for index in indices]
            images = normalise(np.stack([pair.image for pair in pairs]), preprocessing, device)
            labels = torch.from_numpy(np.stack([pair.labels for pair in pairs])).to(device)
            meter.add(predict(network, images, task), labels)
            order += indices
    _tell(meter, samples, order)
    meter.merge(sum_over_processes)
    meter.images = len(samples)
    return meter.scores()


def score_predictions(
    predict: Callable[[NDArray[np.uint8]], NDArray[Any]], samples: LabelledImages, *, task: Task
) -> Scores:
    """Score any function from pixels to predictions of the same size, one image at a time."""
    meter = kind_of(task).meter(task, torch.device("cpu"))
    for index in range(len(samples)):
        image, labels = samples.pair(index)
        prediction = torch.from_numpy(np.array(predict(image)))
        meter.add(prediction[None], torch.from_numpy(np.array(labels))[None])
    _tell(meter, samples, range(len(samples)))
    meter.images = len(samples)
    return meter.scores()


def score_tiles(scores: TileScores, samples: LargePixels, tiling: Tiling, *, task: Task) -> Scores:
    """Score large pictures in overlapping tiles, band by band; processes share the pictures."""
    meter = kind_of(task).meter(task, torch.device("cpu"))
    rank, processes = world()
    for index in range(rank, len(samples), processes):
        width = int(samples.sizes[index][1])
        for band in label_bands(samples.rows(index), scores, tiling, classes=task.outputs):
            truth = samples.masks[index].read(band.top, band.top + len(band.labels), 0, width)
            meter.add(torch.from_numpy(band.labels[None]), torch.from_numpy(truth[None]))
    meter.merge(sum_over_processes)
    meter.images = len(samples)
    return meter.scores()


def _tell(meter: Meter, images: LabelledImages, order: Sequence[int]) -> None:
    """Tell a meter that compares across samples which they are."""
    samples = getattr(images, "samples", ())
    if isinstance(meter, KnowsSamples) and samples:
        meter.know([samples[index] for index in order])


def group_by_size(
    sizes: NDArray[np.int64], *, batch: int, part: tuple[int, int] = (0, 1)
) -> Iterator[list[int]]:
    """Yield indices of images of equal size, at most `batch` at a time; of several processes each gets its share."""
    rank, processes = part
    groups: dict[tuple[int, int], list[int]] = {}
    for index, (height, width) in enumerate(sizes):
        groups.setdefault((int(height), int(width)), []).append(index)
    chunks = [
        group[start : start + batch] for group in groups.values() for start in range(0, len(group), batch)
    ]
    yield from chunks[rank::processes]

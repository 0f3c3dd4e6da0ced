"""Batches: every image once per epoch, and nothing but seed and step decides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from segtailor.core.errors import DataProblem, UserError
from segtailor.data.augment import Augment
from segtailor.data.batches import Batches

COUNT, HEIGHT, WIDTH = 10, 24, 32
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (COUNT, HEIGHT, WIDTH, 3), dtype=np.uint8)
LABELS = RNG.integers(0, 5, (COUNT, HEIGHT, WIDTH), dtype=np.uint8)
SIZES = np.stack([RNG.integers(16, HEIGHT + 1, COUNT), RNG.integers(16, WIDTH + 1, COUNT)], 1)


def batches(**changes: object) -> Batches:
    settings: dict[str, object] = {
        "images": IMAGES,
        "labels": LABELS,
        "sizes": SIZES,
        "augment": Augment(crop=(16, 20), brightness=0.2, hue=0.1),
        "batch": 4,
        "seed": 7,
        "device": torch.device("cpu"),
    }
    return Batches(**{**settings, **changes})  # type: ignore[arg-type]


def test_a_step_gives_the_same_batch_every_time_and_in_any_order() -> None:
    first = [batches().at(step) for step in range(6)]
    again = batches()
    for step in (5, 0, 3, 3, 1):
        assert torch.equal(again.at(step).images, first[step].images)
        assert torch.equal(again.at(step).labels, first[step].labels)
    assert not torch.equal(first[0].images, first[1].images)
    assert not torch.equal(first[0].images, batches(seed=8).at(0).images)


def test_streamed_pixels_give_the_same_batches_as_resident_ones(tmp_path: Path) -> None:
    stored = np.memmap(tmp_path / "images", np.uint8, "w+", shape=IMAGES.shape)
    stored[:] = IMAGES
    stored.flush()
    mapped = np.memmap(tmp_path / "images", np.uint8, "r", shape=IMAGES.shape)
    streamed, resident = batches(images=mapped, memory=0.0), batches(images=mapped)
    assert resident.resident
    assert not streamed.resident
    for step in (0, 1, 2, 7, 3):
        assert torch.equal(streamed.at(step).images, resident.at(step).images)
        assert torch.equal(streamed.at(step).labels, resident.at(step).labels)


@pytest.mark.parametrize("world", [2, 4])
def test_processes_share_the_batch_of_one_process(world: int) -> None:
    alone = batches().at(3)
    shares = [batches(rank=rank, world=world).at(3) for rank in range(world)]
    assert torch.equal(torch.cat([share.images for share in shares]), alone.images)
    assert torch.equal(torch.cat([share.labels for share in shares]), alone.labels)


@pytest.mark.parametrize("batch", [1, 3, 4, 10, 25])
def test_every_image_is_seen_once_per_epoch(batch: int) -> None:
    source = batches(batch=batch)
    stream = np.concatenate([source.chosen(step) for step in range(-(-30 // batch))])[:30]
    epochs = stream.reshape(3, COUNT)
    assert (np.sort(epochs, axis=1) == np.arange(COUNT)).all()
    assert not np.array_equal(epochs[0], epochs[1])
    assert source.steps_per_epoch == -(-COUNT // batch)


def test_shapes_and_types_are_those_promised() -> None:
    images, labels = batches().at(0)
    assert images.shape == (4, 3, 16, 20)
    assert images.dtype == torch.float32
    assert labels.shape == (4, 16, 20)
    assert labels.dtype == torch.uint8


def test_a_batch_that_cannot_be_divided_is_refused() -> None:
    with pytest.raises(UserError, match="multiple of 3"):
        batches(world=3)


def test_an_empty_split_is_refused() -> None:
    with pytest.raises(DataProblem, match="empty"):
        batches(images=IMAGES[:0], labels=LABELS[:0], sizes=SIZES[:0])

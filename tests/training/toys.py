"""Tiny networks, pictures and settings that the training tests share."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from segtailor.core.task import Task
from segtailor.data.augment import Augment
from segtailor.data.batches import Batches
from segtailor.data.dataset import Pair
from segtailor.training.fit import Fit
from segtailor.training.settings import FitSettings, Schedule

CPU = torch.device("cpu")
TASK = Task(classes=("dark", "red", "green"))


class Toy(nn.Module):
    """Two convolutions at stride 2 with one auxiliary output."""

    def __init__(self, *, norm: str = "batch", dropout: float = 0.0, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.plan = SimpleNamespace(align_corners=False)
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm: nn.Module = nn.BatchNorm2d(8) if norm == "batch" else nn.GroupNorm(2, 8)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Conv2d(8, 3, 3, padding=1)
        self.side = nn.Conv2d(8, 3, 1, stride=2)

    def forward(self, image: Tensor) -> Tensor:
        return self.forward_all(image)["main"]

    def forward_all(self, image: Tensor) -> dict[str, Tensor]:
        features = self.dropout(torch.relu(self.norm(self.stem(image))))
        return {"main": self.head(features), "aux": self.side(features)}


class Hungry(Toy):
    """Has memory for `most` images only."""

    def __init__(self, most: int) -> None:
        super().__init__(norm="group")
        self.most = most

    def forward_all(self, image: Tensor) -> dict[str, Tensor]:
        outputs = super().forward_all(image)
        if len(image) > self.most:
            raise torch.OutOfMemoryError("simulated")
        return outputs


class Shots:
    """Pictures in memory; the label is the strongest colour, 255 in a corner."""

    def __init__(self, sizes: list[tuple[int, int]], seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.sizes = np.array(sizes)
        self.pairs = [paint(rng, *size) for size in sizes]

    def __len__(self) -> int:
        return len(self.pairs)

    def pair(self, index: int) -> Pair:
        return self.pairs[index]


def paint(rng: np.random.Generator, height: int, width: int) -> Pair:
    blocks = rng.integers(0, 3, (height // 4 + 1, width // 4 + 1))
    labels = blocks.repeat(4, 0).repeat(4, 1)[:height, :width].astype(np.uint8)
    colours = np.array([[30, 30, 30], [220, 60, 60], [60, 220, 60]])
    noise = rng.integers(-25, 26, (height, width, 3))
    image = (colours[labels] + noise).clip(0, 255).astype(np.uint8)
    labels[: rng.integers(0, 5), : rng.integers(0, 9)] = 255
    return Pair(image, labels)


def training_data() -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.int64]]:
    shots = Shots([(24, 32)] * 12, seed=1)
    return np.stack([p.image for p in shots.pairs]), np.stack([p.labels for p in shots.pairs]), shots.sizes


def settings(**changes: Any) -> FitSettings:
    defaults: dict[str, Any] = {
        "steps": 12, "batch": 4, "lr": 0.05, "schedule": Schedule(warmup=2), "channels_last": False,
    }  # fmt: skip
    return FitSettings(**{**defaults, **changes})


def fit(network: nn.Module | None = None, *, validation: Shots | None = None, **changes: Any) -> Fit:
    """Build a training job on the toy data; `teacher` goes to the job, everything else to its settings."""
    images, labels, sizes = training_data()
    teacher = changes.pop("teacher", None)
    factory = partial(
        Batches, images=images, labels=labels, sizes=sizes, augment=Augment(crop=(16, 16)), device=CPU
    )
    return Fit(
        network=network or Toy(), batches=factory, settings=settings(**changes), task=TASK, device=CPU,
        validation=validation, teacher=teacher,
    )  # fmt: skip


def run(job: Fit) -> Fit:
    for _ in job.steps():
        pass
    return job


def assert_equal_weights(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name

"""Models for tests: one whose answer is known, and a small bundle."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import segtailor
from segtailor.core.task import Task
from segtailor.nets.bundle import Model, save_bundle

TASK = Task(classes=("dark", "bright", "red"), palette=((10, 20, 30), (240, 230, 20), (200, 0, 0)))


@dataclass
class Threshold:
    """Labels pixels by their brightness: what it must answer is plain to see. Remembers the sizes it saw."""

    task: Task = TASK
    seen: list[tuple[int, int]] = field(default_factory=list)

    def predict(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        self.seen.append((image.shape[0], image.shape[1]))
        red = (image[..., 0] > 128) & (image[..., 1] < 128)
        return np.where(red, 2, image.mean(axis=2) > 128).astype(np.uint8)


def save_small_bundle(folder: Path) -> Path:
    save_bundle(folder, Model(network=segtailor.create("lpsnet-step0", classes=3, seed=5), task=TASK))
    return folder


def halves(height: int = 40, width: int = 60) -> NDArray[np.uint8]:
    """Return a picture with a dark left and a bright right half."""
    image = np.full((height, width, 3), 20, np.uint8)
    image[:, width // 2 :] = 230
    return image

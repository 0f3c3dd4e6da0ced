"""Pasting some classes of one training image into another (ClassMix, Olsson et al. 2021, with true labels).

Things appear before backgrounds they were never photographed with, which a small set of drives or sites lacks most.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segtailor.core.task import IGNORE


def draw_classes(count: int, *, share: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return (count, 256): which classes of its neighbour each image takes over; none for 1 - `share` of them."""
    chosen: NDArray[np.bool_] = rng.random((count, IGNORE + 1)) < 0.5
    chosen &= rng.random((count, 1)) < share
    chosen[:, IGNORE] = False  # what is unknown hides nothing
    return chosen


def paste(images: Tensor, labels: Tensor, *, classes: NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
    """Give images 2k and 2k + 1 the `classes` of each other; a last one without a neighbour stays as it is."""
    count = len(labels)
    other = (torch.arange(count, device=labels.device) ^ 1).clamp(max=count - 1)
    table = torch.from_numpy(classes)
    if labels.device.type != "cpu":
        table = table.pin_memory().to(labels.device, non_blocking=True)
    other_labels = labels[other]
    rows = torch.arange(count, device=labels.device)[:, None, None]
    taken = table[rows, other_labels.long()]
    return torch.where(taken[:, None], images[other], images), torch.where(taken, other_labels, labels)

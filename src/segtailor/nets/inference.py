"""From uint8 pixels to labels: the one place that normalises, resizes logits and takes the arg max."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from segtailor.core.task import Preprocessing


def normalised(images: Tensor, preprocessing: Preprocessing, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Turn uint8 (N, height, width, 3) into what the network reads, (N, 3, height, width)."""
    mean = torch.tensor(preprocessing.mean, device=images.device) * 255
    scale = 1 / (torch.tensor(preprocessing.std, device=images.device) * 255)
    return ((images.float() - mean) * scale).to(dtype).permute(0, 3, 1, 2)


def full_size(logits: Tensor, size: tuple[int, ...] | torch.Size, *, align_corners: bool) -> Tensor:
    """Resize logits bilinearly, with the flag that the network's plan states."""
    return functional.interpolate(logits, size=tuple(size), mode="bilinear", align_corners=align_corners)


def label_map(network: nn.Module, images: Tensor, *, size: tuple[int, ...] | torch.Size) -> Tensor:
    """Run a network on normalised images and return labels of `size`, (N, height, width)."""
    logits = network(images)
    align = bool(network.plan.align_corners)  # type: ignore[union-attr]
    return full_size(logits.float(), size, align_corners=align).argmax(1)

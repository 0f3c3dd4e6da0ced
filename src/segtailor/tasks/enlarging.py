"""From a network's stride to pixels: the one resize that all outputs go through."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def enlarge(logits: Tensor, size: tuple[int, int], *, align_corners: bool) -> Tensor:
    """Resize logits bilinearly: the one way from a network's stride to pixels."""
    if logits.shape[-2:] == size:
        return logits
    return functional.interpolate(logits, size=size, mode="bilinear", align_corners=align_corners)

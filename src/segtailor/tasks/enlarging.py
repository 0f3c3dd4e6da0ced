"""Bilinear upsampling from a network's stride to pixels, used for all outputs. Its gradient is two matrix products.

On a GPU torch accumulates the gradient of a bilinear upsampling pixel by pixel, in no fixed order. For the last layer
of a segmentation network this takes most of the training step. The matrices here have the same weights as torch.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def enlarge(logits: Tensor, size: tuple[int, int], *, align_corners: bool) -> Tensor:
    """Resize logits bilinearly from a network's stride to pixels."""
    if logits.shape[-2:] == size:
        return logits
    return resize_bilinear(logits, size, align_corners=align_corners)


def resize_bilinear(maps: Tensor, size: tuple[int, int], *, align_corners: bool) -> Tensor:
    """Resize (n, channels, height, width) as torch does; only the gradient is computed differently."""
    if torch.is_grad_enabled() and maps.requires_grad:
        resized: Tensor = _Resized.apply(maps, size, align_corners)  # type: ignore[no-untyped-call]
        return resized
    return functional.interpolate(maps, size=size, mode="bilinear", align_corners=align_corners)


class _Resized(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor, size: tuple[int, int], align_corners: bool) -> Tensor:
        ctx.dtype, ctx.source, ctx.align_corners = maps.dtype, tuple(maps.shape[2:]), align_corners
        return functional.interpolate(maps, size=size, mode="bilinear", align_corners=align_corners)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        wide = gradient.double() if gradient.dtype == torch.float64 else gradient.float()
        rows, columns = (
            weights(source, target, ctx.align_corners, wide.dtype, wide.device)
            for source, target in zip(ctx.source, wide.shape[2:], strict=True)
        )
        return (rows @ (wide @ columns.mT)).to(ctx.dtype), None, None


def weights(
    source: int, target: int, align_corners: bool, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return (source, target): the weight of each source pixel in each target pixel along one axis."""
    compute = _weights if torch.compiler.is_compiling() else _cached_weights
    return compute(source, target, align_corners, dtype, device)


def _weights(
    source: int, target: int, align_corners: bool, dtype: torch.dtype, device: torch.device
) -> Tensor:
    unit = torch.eye(source, dtype=dtype, device=device)[None]
    return functional.interpolate(unit, size=target, mode="linear", align_corners=align_corners)[0]


_cached_weights = lru_cache(maxsize=64)(_weights)

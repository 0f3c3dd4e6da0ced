"""From a network's stride to pixels: the one resize that all outputs go through. Its gradient is two matrix products.

On a GPU torch adds up the gradient of a large enlargement pixel by pixel, in no fixed order: at the last step of a
segmentation network that takes most of the training step. The matrices below hold the same weights.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def enlarge(logits: Tensor, size: tuple[int, int], *, align_corners: bool) -> Tensor:
    """Resize logits bilinearly: the one way from a network's stride to pixels."""
    if logits.shape[-2:] == size:
        return logits
    return resize_bilinear(logits, size, align_corners=align_corners)


def resize_bilinear(maps: Tensor, size: tuple[int, int], *, align_corners: bool) -> Tensor:
    """Resize (n, channels, height, width) as torch does; only the gradient is computed otherwise."""
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
    """Return (source, target): what each source pixel gives to each target pixel along one axis."""
    made = _weights if torch.compiler.is_compiling() else _remembered  # a compiler has no use for memory
    return made(source, target, align_corners, dtype, device)


def _weights(
    source: int, target: int, align_corners: bool, dtype: torch.dtype, device: torch.device
) -> Tensor:
    unit = torch.eye(source, dtype=dtype, device=device)[None]
    return functional.interpolate(unit, size=target, mode="linear", align_corners=align_corners)[0]


_remembered = lru_cache(maxsize=64)(_weights)

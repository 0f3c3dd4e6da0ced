"""Calls of our Triton kernels as plain functions of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import triton
from torch import Tensor

from segtailor.targets.cuda.fuse import Fused, FusedConvolution, FusedResize
from segtailor.targets.cuda.triton_kernels import bilinear, convolution, depthwise

FEW = 8  # input channels below which a library's convolution wastes its tiles


def triton_candidates(op: Fused, inputs: Sequence[Tensor | None]) -> Iterator[Callable[..., Tensor]]:
    """Give our kernels for an operator; none where a map is not channels_last."""
    maps = [inputs[0], *inputs[3:]] if isinstance(op, FusedConvolution) else list(inputs)
    if any(part is None or not part.is_contiguous(memory_format=torch.channels_last) for part in maps):
        return
    if isinstance(op, FusedResize):
        for block in (256, 1024):
            yield _resize_kernel(op, block)
        return
    image, weight = inputs[:2]
    if image is None or weight is None or not _square(op, weight):
        return
    if op.groups == image.shape[1] == weight.shape[0]:
        for pixels, lanes, warps in ((8, 64, 4), (16, 32, 4), (4, 64, 2)):
            yield _depthwise_kernel(op, pixels=pixels, lanes=lanes, warps=warps)
    elif op.groups == 1 and image.shape[1] < FEW:
        for rows, warps in ((128, 4), (64, 4)):
            yield _first_kernel(op, rows=rows, warps=warps)


def _square(op: FusedConvolution, weight: Tensor) -> bool:
    """Tell whether the kernel is the same in both directions and lies in memory tap by tap."""
    alike = all(len({*pair}) == 1 for pair in (op.stride, op.padding, op.dilation, tuple(weight.shape[2:])))
    return alike and weight.is_contiguous(memory_format=torch.channels_last)


def _depthwise_kernel(op: FusedConvolution, *, pixels: int, lanes: int, warps: int) -> Callable[..., Tensor]:
    def run(image: Tensor, weight: Tensor, bias: Tensor | None, *other: Tensor) -> Tensor:
        out = _output(op, image, weight)
        count, channels, height, width = image.shape
        tall, wide = out.shape[2:]
        grid = (triton.cdiv(wide, pixels), count * tall, triton.cdiv(channels, lanes))
        depthwise[grid](
            image, weight, bias if bias is not None else weight, other[0] if other else image, out,
            height, width, tall, wide,
            CHANNELS=channels, KERNEL=weight.shape[2], STRIDE=op.stride[0], PADDING=op.padding[0],
            DILATION=op.dilation[0], BIAS=bias is not None, ADDS=op.adds, RELU=op.relu, PIXELS=pixels, LANES=lanes,
            num_warps=warps,
        )  # fmt: skip
        return out

    return run


def _first_kernel(op: FusedConvolution, *, rows: int, warps: int) -> Callable[..., Tensor]:
    def run(image: Tensor, weight: Tensor, bias: Tensor | None, *other: Tensor) -> Tensor:
        out = _output(op, image, weight)
        outputs, inputs, kernel = weight.shape[:3]
        tall, wide = out.shape[2:]
        pixels = image.shape[0] * tall * wide
        lanes = max(16, min(64, triton.next_power_of_2(outputs)))
        depth = max(16, min(64, triton.next_power_of_2(inputs * kernel * kernel)))
        grid = (triton.cdiv(pixels, rows), triton.cdiv(outputs, lanes))
        convolution[grid](
            image, weight, bias if bias is not None else weight, other[0] if other else image, out,
            image.shape[2], image.shape[3], tall, wide, pixels,
            INPUTS=inputs, OUTPUTS=outputs, KERNEL=kernel, STRIDE=op.stride[0], PADDING=op.padding[0],
            DILATION=op.dilation[0], BIAS=bias is not None, ADDS=op.adds, RELU=op.relu,
            ROWS=rows, LANES=lanes, DEPTH=depth, num_warps=warps,
        )  # fmt: skip
        return out

    return run


def _resize_kernel(op: FusedResize, block: int) -> Callable[..., Tensor]:
    def run(image: Tensor, *other: Tensor) -> Tensor:
        count, channels, height, width = image.shape
        out = _empty(image, (count, channels, *op.size))
        tall, wide = op.size
        if op.align_corners:
            down, right = (height - 1) / max(tall - 1, 1), (width - 1) / max(wide - 1, 1)
        else:
            down, right = height / tall, width / wide
        bilinear[(triton.cdiv(out.numel(), block),)](
            image, other[0] if other else image, out, height, width, tall, wide, down, right, out.numel(),
            CHANNELS=channels, ALIGNED=op.align_corners, ADDS=op.adds, RELU=op.relu, BLOCK=block, num_warps=4,
        )  # fmt: skip
        return out

    return run


def _output(op: FusedConvolution, image: Tensor, weight: Tensor) -> Tensor:
    sides: list[int] = []
    for axis in (0, 1):
        reach = op.dilation[axis] * (weight.shape[2 + axis] - 1) + 1
        sides.append((image.shape[2 + axis] + 2 * op.padding[axis] - reach) // op.stride[axis] + 1)
    return _empty(image, (image.shape[0], weight.shape[0], *sides))


def _empty(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)

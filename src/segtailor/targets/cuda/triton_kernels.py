"""Our own Triton kernels on channels_last maps: depthwise convolution, first convolution, bilinear resize.

First the functions that call them on tensors, then the kernels. Triton compiles the kernels for the device;
upper-case arguments are constants of the compiled kernel.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from segtailor.targets.cuda.fuse import Fused, FusedConvolution, FusedResize

MIN_LIBRARY_CHANNELS = 8  # input channels: with fewer, a library's convolution wastes most of its tiles


def triton_candidates(op: Fused, inputs: Sequence[Tensor | None]) -> Iterator[Callable[..., Tensor]]:
    """Yield our kernels for an operator; none if a map is not channels_last."""
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
    elif op.groups == 1 and image.shape[1] < MIN_LIBRARY_CHANNELS:
        for rows, warps in ((128, 4), (64, 4)):
            yield _first_kernel(op, rows=rows, warps=warps)


def _square(op: FusedConvolution, weight: Tensor) -> bool:
    """Tell whether the convolution is the same in both directions and its weights are channels_last."""
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


# fmt: off
@triton.jit
def depthwise(
    image, weight, bias, other, out, height, width, out_height, out_width, CHANNELS: tl.constexpr,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, DILATION: tl.constexpr,
    BIAS: tl.constexpr, ADDS: tl.constexpr, RELU: tl.constexpr, PIXELS: tl.constexpr, LANES: tl.constexpr,
):
    """Depthwise convolution; each program does PIXELS columns of one row for LANES channels."""
    column = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    line = tl.program_id(1)
    channel = tl.program_id(2) * LANES + tl.arange(0, LANES)
    picture, row = line // out_height, line % out_height
    lane = channel < CHANNELS
    total = tl.zeros((PIXELS, LANES), dtype=tl.float32)
    for down in tl.static_range(KERNEL):
        source_row = row * STRIDE - PADDING + down * DILATION
        inside_row = (source_row >= 0) & (source_row < height)
        for right in tl.static_range(KERNEL):
            source = column * STRIDE - PADDING + right * DILATION
            inside = inside_row & (source >= 0) & (source < width) & (column < out_width)
            place = ((picture * height + source_row) * width + source)[:, None] * CHANNELS + channel[None, :]
            value = tl.load(image + place, mask=inside[:, None] & lane[None, :], other=0.0).to(tl.float32)
            factor = tl.load(
                weight + channel * (KERNEL * KERNEL) + down * KERNEL + right, mask=lane, other=0.0
            )
            total += value * factor.to(tl.float32)[None, :]
    if BIAS:
        total += tl.load(bias + channel, mask=lane, other=0.0).to(tl.float32)[None, :]
    place = (line * out_width + column)[:, None] * CHANNELS + channel[None, :]
    kept = (column < out_width)[:, None] & lane[None, :]
    if ADDS:
        total += tl.load(other + place, mask=kept, other=0.0).to(tl.float32)
    if RELU:
        total = tl.maximum(total, 0.0)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=kept)


@triton.jit
def convolution(
    image, weight, bias, other, out, height, width, out_height, out_width, pixels, INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    DILATION: tl.constexpr, BIAS: tl.constexpr, ADDS: tl.constexpr, RELU: tl.constexpr,
    ROWS: tl.constexpr, LANES: tl.constexpr, DEPTH: tl.constexpr,
):
    """Convolution as a matrix product over taps and channels; for few input channels."""
    pixel = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * LANES + tl.arange(0, LANES)
    column, line = pixel % out_width, pixel // out_width
    row, picture = line % out_height, line // out_height
    total = tl.zeros((ROWS, LANES), dtype=tl.float32)
    DEEP: tl.constexpr = KERNEL * KERNEL * INPUTS
    for start in range(0, DEEP, DEPTH):
        term = start + tl.arange(0, DEPTH)
        tap, source_channel = term // INPUTS, term % INPUTS
        source_row = (row * STRIDE - PADDING)[:, None] + (tap // KERNEL * DILATION)[None, :]
        source = (column * STRIDE - PADDING)[:, None] + (tap % KERNEL * DILATION)[None, :]
        inside = (source_row >= 0) & (source_row < height) & (source >= 0) & (source < width)
        inside = inside & (term < DEEP)[None, :] & (pixel < pixels)[:, None]
        place = ((picture[:, None] * height + source_row) * width + source) * INPUTS + source_channel[None, :]
        values = tl.load(image + place, mask=inside, other=0.0)
        kernel = tl.load(
            weight + channel[None, :] * DEEP + term[:, None],
            mask=(channel < OUTPUTS)[None, :] & (term < DEEP)[:, None],
            other=0.0,
        )
        total = tl.dot(values, kernel, total)
    if BIAS:
        total += tl.load(bias + channel, mask=channel < OUTPUTS, other=0.0).to(tl.float32)[None, :]
    place = pixel[:, None] * OUTPUTS + channel[None, :]
    kept = (pixel < pixels)[:, None] & (channel < OUTPUTS)[None, :]
    if ADDS:
        total += tl.load(other + place, mask=kept, other=0.0).to(tl.float32)
    if RELU:
        total = tl.maximum(total, 0.0)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=kept)


@triton.jit
def bilinear(
    image, other, out, height, width, out_height, out_width, down, right, count, CHANNELS: tl.constexpr,
    ALIGNED: tl.constexpr, ADDS: tl.constexpr, RELU: tl.constexpr, BLOCK: tl.constexpr,
):
    """Bilinear resize as PyTorch computes it; each program does BLOCK values."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = place < count
    channel, pixel = place % CHANNELS, place // CHANNELS
    column, line = pixel % out_width, pixel // out_width
    row, picture = line % out_height, line // out_height
    if ALIGNED:
        y, x = row * down, column * right
    else:
        y = tl.maximum((row + 0.5) * down - 0.5, 0.0)
        x = tl.maximum((column + 0.5) * right - 0.5, 0.0)
    top, left = y.to(tl.int32), x.to(tl.int32)
    top = tl.minimum(top, height - 1)
    left = tl.minimum(left, width - 1)
    y, x = y - top, x - left
    bottom, far = tl.minimum(top + 1, height - 1), tl.minimum(left + 1, width - 1)
    upper, lower = (picture * height + top) * width, (picture * height + bottom) * width
    a = tl.load(image + (upper + left) * CHANNELS + channel, mask=kept, other=0.0).to(tl.float32)
    b = tl.load(image + (upper + far) * CHANNELS + channel, mask=kept, other=0.0).to(tl.float32)
    c = tl.load(image + (lower + left) * CHANNELS + channel, mask=kept, other=0.0).to(tl.float32)
    d = tl.load(image + (lower + far) * CHANNELS + channel, mask=kept, other=0.0).to(tl.float32)
    value = (1 - y) * ((1 - x) * a + x * b) + y * ((1 - x) * c + x * d)
    if ADDS:
        value += tl.load(other + place, mask=kept, other=0.0).to(tl.float32)
    if RELU:
        value = tl.maximum(value, 0.0)
    tl.store(out + place, value.to(out.dtype.element_ty), mask=kept)
# fmt: on

"""Kernels of our own, in Triton, over channels_last maps: depthwise and first convolutions, bilinear resize.

Triton compiles these functions for the device; upper-case arguments are constants of the compiled kernel.
"""

import triton
import triton.language as tl


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

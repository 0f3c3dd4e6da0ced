"""Counts that operators share: weights and multiply-accumulates of a convolution, extent of a kernel."""

from __future__ import annotations

from segtailor.core.plan import Shape

NORM_PARAMS = 2  # learnable values per channel of a batch norm: weight and bias


def kernel_weights(inputs: int, outputs: int, *, kernel: int, groups: int = 1) -> int:
    """Count the weights of a convolution kernel."""
    return kernel * kernel * inputs * outputs // groups


def conv_macs(inputs: int, output: Shape, *, kernel: int, groups: int = 1) -> int:
    """Count the multiply-accumulates of a convolution that writes `output`."""
    weights = kernel_weights(inputs, output.channels, kernel=kernel, groups=groups)
    return weights * output.height * output.width


def extent(kernel: int, dilation: int = 1) -> int:
    """Return how many input pixels a dilated kernel spans."""
    return dilation * (kernel - 1) + 1

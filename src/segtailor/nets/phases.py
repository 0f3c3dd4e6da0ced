"""Depthwise convolutions with dilation as ones without, phase by phase.

A tap of a kernel with dilation d reads pixels d apart, so pixels whose places differ modulo d never meet: each of these
d x d phases of a map is convolved by itself, without dilation. Libraries for GPUs have fast depthwise kernels for that
case alone: on an H200 in bf16, forward, cuDNN took 0.71 ms with dilation where it takes 0.06 ms without. Rearranging
the map costs two copies.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def depthwise(maps: Tensor, kernels: Tensor, *, stride: int, dilation: int) -> Tensor:
    """Convolve every channel with its own odd square kernel; the padding keeps the size where nothing is strided."""
    if dilation > 1 and maps.is_cuda and (stride == 1 or stride % dilation == 0):
        return by_phases(maps, kernels, stride=stride, dilation=dilation)
    padding = dilation * (kernels.shape[-1] // 2)
    return functional.conv2d(maps, kernels, None, stride, padding, dilation, groups=len(kernels))


def by_phases(maps: Tensor, kernels: Tensor, *, stride: int, dilation: int) -> Tensor:
    """Do the same by phases; the stride is 1 or a multiple of the dilation, which leaves only the first phase."""
    if stride > 1:
        return depthwise(maps[:, :, ::dilation, ::dilation], kernels, stride=stride // dilation, dilation=1)
    height, width = maps.shape[2:]
    found = _together(depthwise(_apart(maps, dilation), kernels, stride=1, dilation=1), dilation)
    return found[:, :, :height, :width]


def _apart(maps: Tensor, phases: int) -> Tensor:
    """Lay the phases of (n, c, h, w) maps out as more images, channels last in memory."""
    rest = [-side % phases for side in reversed(maps.shape[2:])]
    if any(rest):
        maps = functional.pad(maps, (0, rest[0], 0, rest[1]))
    count, channels, height, width = maps.shape
    rows = maps.permute(0, 2, 3, 1).reshape(
        count, height // phases, phases, width // phases, phases, channels
    )
    rows = rows.permute(2, 4, 0, 1, 3, 5).reshape(-1, height // phases, width // phases, channels)
    return rows.permute(0, 3, 1, 2)


def _together(maps: Tensor, phases: int) -> Tensor:
    """Undo `_apart`, save for what was added at the edges."""
    count, channels, height, width = maps.shape
    rows = maps.permute(0, 2, 3, 1).reshape(phases, phases, count // phases**2, height, width, channels)
    rows = rows.permute(2, 3, 0, 4, 1, 5).reshape(-1, height * phases, width * phases, channels)
    return rows.permute(0, 3, 1, 2)

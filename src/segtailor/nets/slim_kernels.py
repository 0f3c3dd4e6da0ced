"""One cell of shared widths in few large kernels: operators that read the same map share a convolution and a norm.

Weights of operators and inputs are not negative, so they stand in scale and shift of the last norms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from segtailor.nets.slim import Width
from segtailor.nets.slim_ops import CellWidths, SlimCell, SlimMixed, SlimSkip, SlimUnit
from segtailor.nets.slim_resize import Sides, resize


class Values(NamedTuple):
    """Scale, shift and statistics of norms that are called as one; in training the statistics are written."""

    weight: Tensor
    bias: Tensor
    mean: Tensor
    variance: Tensor


class Kernels(NamedTuple):
    """The joint kernels of one mix: of the map, of its first results, of the skip."""

    full: Tensor
    second: Tensor
    skip: Tensor
    zoomed_second: Tensor


class Sources(NamedTuple):
    """What one application of a cell reads besides its map; `order` sorts the channels of a skip at stride 2."""

    same: Kernels
    down: Kernels | None
    half: Tensor
    norms: tuple[Values, ...]
    order: Tensor | None
    shrink: Sides | None
    enlarge: Sides | None


class Manner(NamedTuple):
    """Constants of a pass."""

    training: bool
    eps: float


Run: TypeAlias = Callable[[Tensor, Sources, Manner], tuple[Tensor, Tensor | None]]


def cell_maps(image: Tensor, given: Sources, manner: Manner) -> tuple[Tensor, Tensor | None]:
    """Run a cell; both results are sums of ReLUs whose norms hold the weights."""
    norms = iter(given.norms)

    def norm(maps: Tensor) -> Tensor:
        own = next(norms)
        momentum = 1.0 if manner.training else 0.0
        return functional.batch_norm(
            maps, own.mean, own.variance, own.weight, own.bias, manner.training, momentum, manner.eps
        )

    def mix(kernels: Kernels, stride: int) -> Tensor:
        full = norm(functional.conv2d(image, kernels.full, None, stride, 1))
        first, second = full.chunk(2, dim=1)
        second = functional.relu(norm(functional.conv2d(functional.relu(second), kernels.second, None, 1, 1)))
        skip = functional.conv2d(image, kernels.skip, None, stride)
        if stride == 2 and given.order is not None:
            skip = skip.index_select(1, given.order)
        return functional.relu(first) + second + functional.relu(norm(skip))

    same = mix(given.same, 1)
    small = norm(functional.conv2d(_shrunk(image, given), given.half, None, 1, 1))
    width = given.same.zoomed_second.shape[0]
    parts = small.split([width, width] if given.down is None else [width, width, *_pair(given.down)], dim=1)  # type: ignore[no-untyped-call]
    twice = norm(functional.conv2d(functional.relu(parts[1]), given.same.zoomed_second, None, 1, 1))
    same = same + functional.relu(_enlarged(parts[0], image, given))
    same = same + functional.relu(_enlarged(twice, image, given))
    if given.down is None:
        return same, None
    down = mix(given.down, 2) + functional.relu(parts[2])
    twice = norm(functional.conv2d(functional.relu(parts[3]), given.down.zoomed_second, None, 1, 1))
    return same, down + functional.relu(twice)


def cell_kernels(cell: SlimCell, widths: CellWidths) -> tuple[Kernels, Kernels | None, Tensor]:
    """Gather the kernels of both mixes, and the joint one of everything that works at half the resolution."""
    same, half = _mix_kernels(cell.same, widths.inputs, widths.same)
    if cell.down is None or widths.down is None:
        return same, None, torch.cat(half)
    down, more = _mix_kernels(cell.down, widths.inputs, widths.down)
    return same, down, torch.cat([*half, *more])


def _mix_kernels(mixed: SlimMixed, inputs: Width, outputs: Width) -> tuple[Kernels, list[Tensor]]:
    full = torch.cat([unit.conv1.kernel(inputs, outputs) for unit in (mixed.conv, mixed.conv_2x)])
    half = [unit.conv1.kernel(inputs, outputs) for unit in (mixed.zoomed_conv, mixed.zoomed_conv_2x)]
    second, zoomed_second = (_second(unit, outputs) for unit in (mixed.conv_2x, mixed.zoomed_conv_2x))
    return Kernels(full, second, _skip(mixed.skip, inputs, outputs), zoomed_second), half


def _second(unit: SlimUnit, outputs: Width) -> Tensor:
    if unit.conv2 is None:
        raise TypeError("a unit of one convolution has no second")
    return unit.conv2.kernel(outputs, outputs)


def _skip(skip: SlimSkip, inputs: Width, outputs: Width) -> Tensor:
    """Return the kernel of a skip; at stride 2 both halves are corners of one 2x2 kernel."""
    if skip.conv2 is None:
        return skip.conv1.kernel(inputs, outputs)
    part = Width(channels=tuple(width // 2 for width in outputs.channels), index=outputs.index)
    one, two = (conv.kernel(inputs, part) for conv in (skip.conv1, skip.conv2))
    return torch.cat([functional.pad(one, (0, 1, 0, 1)), functional.pad(two, (1, 0, 1, 0))])


def _pair(kernels: Kernels) -> tuple[int, int]:
    width = kernels.zoomed_second.shape[0]
    return width, width


def _shrunk(image: Tensor, given: Sources) -> Tensor:
    if given.shrink is not None:
        return resize(image, given.shrink)
    size = [max(1, side // 2) for side in image.shape[2:]]
    return functional.interpolate(image, size=size, mode="bilinear", align_corners=True)


def _enlarged(maps: Tensor, like: Tensor, given: Sources) -> Tensor:
    if given.enlarge is not None:
        return resize(maps.contiguous(memory_format=_format(like)), given.enlarge)
    return functional.interpolate(maps, size=like.shape[2:], mode="bilinear", align_corners=True)


def _format(image: Tensor) -> torch.memory_format:
    last = image.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format

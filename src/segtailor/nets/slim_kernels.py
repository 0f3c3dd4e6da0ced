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


Add: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def relu_sum(one: Tensor, two: Tensor, three: Tensor, four: Tensor, five: Tensor) -> Tensor:
    """Add the ReLUs of five maps: worth a compiler, which reads each once."""
    return (
        functional.relu(one)
        + functional.relu(two)
        + functional.relu(three)
        + functional.relu(four)
        + functional.relu(five)
    )


def compiled_relu_sum() -> Add:
    """Return the sum as one kernel for maps of any size."""
    compiled: Add = torch.compile(relu_sum, dynamic=True)
    return compiled


def cell_maps(
    image: Tensor, given: Sources, manner: Manner, add: Add = relu_sum
) -> tuple[Tensor, Tensor | None]:
    """Run a cell; both results are sums of ReLUs whose norms hold the weights."""
    norms = iter(given.norms)

    def norm(maps: Tensor) -> Tensor:
        own = next(norms)
        momentum = 1.0 if manner.training else 0.0
        return functional.batch_norm(
            maps, own.mean, own.variance, own.weight, own.bias, manner.training, momentum, manner.eps
        )

    def first(kernels: Kernels, stride: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return what convolution, its double and the skip lead to, before their ReLU."""
        once, twice = norm(functional.conv2d(image, kernels.full, None, stride, 1)).chunk(2, dim=1)
        twice = norm(functional.conv2d(functional.relu(twice), kernels.second, None, 1, 1))
        skip = functional.conv2d(image, kernels.skip, None, stride)
        if stride == 2 and given.order is not None:
            skip = skip.index_select(1, given.order)
        return once, twice, norm(skip)

    def again(maps: Tensor, kernel: Tensor) -> Tensor:
        return norm(functional.conv2d(functional.relu(maps), kernel, None, 1, 1))

    plain = first(given.same, 1)
    small = norm(functional.conv2d(_shrunk(image, given), given.half, None, 1, 1))
    widths = [given.same.zoomed_second.shape[0]] * 2
    if given.down is not None:
        widths += [given.down.zoomed_second.shape[0]] * 2
    parts = small.split(widths, dim=1)  # type: ignore[no-untyped-call]
    twice = again(parts[1], given.same.zoomed_second)
    same = add(*plain, _enlarged(parts[0], image, given), _enlarged(twice, image, given))
    if given.down is None:
        return same, None
    plain = first(given.down, 2)
    return same, add(*plain, parts[2], again(parts[3], given.down.zoomed_second))


def cell_kernels(cell: SlimCell, widths: CellWidths) -> tuple[Kernels, Kernels | None, Tensor]:
    """Gather the kernels of both mixes, and the joint one of everything that works at half the resolution."""
    same, half = _mix_kernels(cell.same, widths.inputs, widths.same)
    if cell.down is None or widths.down is None:
        return same, None, _cast(torch.cat(half))
    down, more = _mix_kernels(cell.down, widths.inputs, widths.down)
    return same, down, _cast(torch.cat([*half, *more]))


def _mix_kernels(mixed: SlimMixed, inputs: Width, outputs: Width) -> tuple[Kernels, list[Tensor]]:
    full = torch.cat([unit.conv1.kernel(inputs, outputs) for unit in (mixed.conv, mixed.conv_2x)])
    half = [unit.conv1.kernel(inputs, outputs) for unit in (mixed.zoomed_conv, mixed.zoomed_conv_2x)]
    second, zoomed_second = (_second(unit, outputs) for unit in (mixed.conv_2x, mixed.zoomed_conv_2x))
    made = (full, second, _skip(mixed.skip, inputs, outputs), zoomed_second)
    return Kernels(*map(_cast, made)), half


def _cast(kernel: Tensor) -> Tensor:
    """Bring a kernel to the precision of the forward pass once, for all inputs of its cell."""
    kind = kernel.device.type
    return kernel.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else kernel


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

"""Width-shared layers: one kernel of the greatest size and one batch norm per width (FasterSeg section 3.1).

A narrower layer uses the first rows and columns of the kernel. Where the host knows a width, maps and kernels are
sliced to it. Where only the device knows it (a one-hot row drawn there), maps keep the greatest width and the norm
writes zeros beyond the drawn one: shapes never change, so nothing waits and a whole step can be recorded.

Cells here run FasterSeg's five operators one after another: the plain path, which `slim_fused.py` must equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from segtailor.core.errors import Unsupported
from segtailor.nets.mixed import scaled
from segtailor.ops.modules.combining import resized


@dataclass(frozen=True, kw_only=True)
class Width:
    """How wide a map is: the `channels` of all options in ascending order, and the chosen one.

    `index` is the choice where the host knows it. `row` has one weight per option, all zero but one: it is the choice
    where there is no index, and receives the gradient of the choice in any case. The gradient comes by the score of the
    chosen option, or, where there is no index, `through_norms`, whose values of all options the row then weighs. A
    score is only a factor, which the norm behind the next convolution removes: in training little but rounding errors
    flows through it.
    """

    channels: tuple[int, ...]
    index: int | None = None
    row: Tensor | None = None
    through_norms: bool = False

    @property
    def extent(self) -> int:
        """The channels that a map of this width has: the chosen ones, or the greatest number where zeros fill it."""
        return self.channels[-1 if self.index is None else self.index]

    @property
    def choice(self) -> Tensor:
        """The one-hot row of a width that only the device knows, without gradient."""
        if self.row is None:
            raise Unsupported("a width has neither index nor weights; give one of them.")
        return self.row.detach()

    @property
    def score(self) -> Tensor | None:
        """A factor of value one, straight-through, that carries gradients to the row; None where none are wanted."""
        if self.row is None or not self.row.requires_grad or (self.through_norms and self.index is None):
            return None
        return (self.row * self.choice).sum() if self.index is None else self.row[self.index]


def fixed(channels: int) -> Width:
    """Return a width that is never chosen."""
    return Width(channels=(channels,), index=0)


class SlimConv(nn.Conv2d):
    """A convolution without bias whose first rows and columns serve narrower maps."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, stride: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride, kernel // 2, bias=False)

    def kernel(self, inputs: Width, outputs: Width) -> Tensor:
        """Return the part of the kernel that two widths use; the whole one as it is, since gradients of slices cost."""
        if (outputs.extent, inputs.extent) == (self.out_channels, self.in_channels):
            return self.weight
        return self.weight[: outputs.extent, : inputs.extent]

    def forward(self, image: Tensor, inputs: Width, outputs: Width) -> Tensor:  # type: ignore[override]
        """Convolve; beyond a width that only the device knows the output is meaningless until its norm."""
        return functional.conv2d(image, self.kernel(inputs, outputs), None, self.stride, self.padding)


class SlimNorm(nn.Module):
    """Batch norm with scale, shift and statistics of its own for every width; zeros beyond the width."""

    mask: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: tuple[int, ...], *, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.channels, self.eps, self.momentum = channels, eps, momentum
        shape = (len(channels), channels[-1])
        self.weight = nn.Parameter(torch.ones(shape))
        self.bias = nn.Parameter(torch.zeros(shape))
        self.register_buffer("running_mean", torch.zeros(shape))
        self.register_buffer("running_var", torch.ones(shape))
        within = torch.arange(channels[-1])[None] < torch.tensor(channels)[:, None]
        self.register_buffer("mask", within, persistent=False)

    def forward(self, image: Tensor, width: Width) -> Tensor:
        """Normalise with the values of a width."""
        if width.channels != self.channels:
            raise Unsupported(f"widths {width.channels} were given to a norm of widths {self.channels}.")
        if width.index is not None:
            here = (width.index, slice(0, width.extent))
            return functional.batch_norm(
                image,
                self.running_mean[here],
                self.running_var[here],
                self.weight[here],
                self.bias[here],
                self.training,
                self.momentum,
                self.eps,
            )
        choice = width.choice[:, None]
        chosen = choice * self.mask
        shares = chosen if width.row is None or not width.through_norms else width.row[:, None] * self.mask
        weight, bias = (shares * self.weight).sum(0), (shares * self.bias).sum(0)
        if not self.training:
            mean, variance = (choice * self.running_mean).sum(0), (choice * self.running_var).sum(0)
            return functional.batch_norm(image, mean, variance, weight, bias, False, 0.0, self.eps)
        mean, variance = torch.zeros_like(weight.detach()), torch.zeros_like(weight.detach())
        # A momentum of one leaves the statistics of this batch in the given tensors.
        out = functional.batch_norm(image, mean, variance, weight, bias, True, 1.0, self.eps)
        with torch.no_grad():
            self.running_mean += self.momentum * chosen * (mean - self.running_mean)
            self.running_var += self.momentum * chosen * (variance - self.running_var)
        return out


@dataclass(frozen=True, kw_only=True)
class SlimFrame:
    """The greatest width that an operator reads, all widths that it writes, and its stride."""

    inputs: int
    outputs: tuple[int, ...]
    stride: int


@dataclass(frozen=True, kw_only=True)
class CellWidths:
    """The widths of what a cell reads and of what it writes at its own and at half its resolution."""

    inputs: Width
    same: Width
    down: Width | None = None


class SlimUnit(nn.Module):
    """One or two 3x3 convolutions with norm and ReLU; `zoomed` ones work at half the resolution.

    A zoomed unit has its last ReLU behind the enlarging, and its stride from the shrinking.
    """

    def __init__(self, frame: SlimFrame, *, repeats: int, zoomed: bool) -> None:
        super().__init__()
        self.stride, self.zoomed = frame.stride, zoomed
        most = frame.outputs[-1]
        self.conv1 = SlimConv(frame.inputs, most, 3, stride=1 if zoomed else frame.stride)
        self.norm1 = SlimNorm(frame.outputs)
        self.conv2 = SlimConv(most, most, 3) if repeats == 2 else None
        self.norm2 = SlimNorm(frame.outputs) if repeats == 2 else None

    def forward(self, image: Tensor, inputs: Width, outputs: Width) -> Tensor:
        """Run the unit."""
        size = image.shape[2:]
        maps = half(image) if self.zoomed else image
        maps = self.norm1(self.conv1(maps, inputs, outputs), outputs)
        if self.conv2 is not None and self.norm2 is not None:
            maps = self.norm2(self.conv2(functional.relu(maps), outputs, outputs), outputs)
        if self.zoomed and self.stride == 1:
            maps = resized(maps, size, align_corners=True)
        return functional.relu(maps)


class SlimSkip(nn.Module):
    """A 1x1 convolution with norm and ReLU; at stride 2 two of half the width, the second one pixel further on."""

    order: Tensor

    def __init__(self, frame: SlimFrame) -> None:
        super().__init__()
        self.stride, most = frame.stride, frame.outputs[-1]
        if any(width % 2 for width in frame.outputs):
            raise Unsupported(f"widths {frame.outputs} of a skip are halved, so they must be even.")
        self.conv1 = SlimConv(frame.inputs, most if frame.stride == 1 else most // 2, 1)
        self.conv2 = SlimConv(frame.inputs, most // 2, 1) if frame.stride == 2 else None
        self.norm1 = SlimNorm(frame.outputs)
        self.register_buffer("order", _halves_order(frame.outputs), persistent=False)

    def forward(self, image: Tensor, inputs: Width, outputs: Width) -> Tensor:
        """Run the skip."""
        if self.conv2 is None:
            return functional.relu(self.norm1(self.conv1(image, inputs, outputs), outputs))
        part = Width(channels=tuple(width // 2 for width in outputs.channels), index=outputs.index)
        one = self.conv1(image[:, :, ::2, ::2], inputs, part)
        two = self.conv2(image[:, :, 1::2, 1::2], inputs, part)
        return functional.relu(self.norm1(self.ordered(torch.cat([one, two], dim=1), outputs), outputs))

    def ordered(self, both: Tensor, outputs: Width) -> Tensor:
        """Bring two halves of the greatest width into the places that a width which only the device knows has."""
        if outputs.index is not None:
            return both
        return both.index_select(1, self.order.index_select(0, outputs.choice.argmax(0, keepdim=True))[0])


class SlimMixed(nn.Module):
    """The weighted sum of the five operators of one map, all at the same widths."""

    def __init__(self, frame: SlimFrame) -> None:
        super().__init__()
        self.skip = SlimSkip(frame)
        self.conv = SlimUnit(frame, repeats=1, zoomed=False)
        self.zoomed_conv = SlimUnit(frame, repeats=1, zoomed=True)
        self.conv_2x = SlimUnit(frame, repeats=2, zoomed=False)
        self.zoomed_conv_2x = SlimUnit(frame, repeats=2, zoomed=True)

    @property
    def operators(self) -> tuple[SlimSkip | SlimUnit, ...]:
        """All operators in the order of the weights."""
        return (self.skip, self.conv, self.zoomed_conv, self.conv_2x, self.zoomed_conv_2x)

    def forward(
        self, image: Tensor, weights: Tensor, keep: Sequence[int], *, inputs: Width, outputs: Width
    ) -> Tensor:
        """Return the sum of the operators in `keep`, times the scores of both widths."""
        for score in (inputs.score, outputs.score):
            weights = weights if score is None else weights * score
        total: Tensor | None = None
        for index in keep:
            part = scaled(self.operators[index](image, inputs, outputs), weights[index])
            total = part if total is None else total + part
        if total is None:
            raise Unsupported("every operator of a cell has weight zero; keep at least one.")
        return total


class SlimCell(nn.Module):
    """Two mixes of one map with the same weights: one keeps the resolution, one (where there is room) halves it."""

    def __init__(self, same: SlimFrame, down: SlimFrame | None) -> None:
        super().__init__()
        self.same = SlimMixed(same)
        self.down = None if down is None else SlimMixed(down)

    def forward(
        self, image: Tensor, weights: Tensor, keep: Sequence[int], *, widths: CellWidths
    ) -> tuple[Tensor, Tensor | None]:
        """Return both mixes."""
        same = self.same(image, weights, keep, inputs=widths.inputs, outputs=widths.same)
        if self.down is None or widths.down is None:
            return same, None
        return same, self.down(image, weights, keep, inputs=widths.inputs, outputs=widths.down)


def half(image: Tensor) -> Tensor:
    """Shrink to half the size, bilinearly with aligned corners."""
    return resized(image, torch.Size([max(1, side // 2) for side in image.shape[2:]]), align_corners=True)


def _halves_order(widths: tuple[int, ...]) -> Tensor:
    """Return for every width where each output channel is among two halves of the greatest width."""
    most = widths[-1]
    rows = []
    for width in widths:
        first, second = range(width // 2), range(most // 2, most // 2 + width // 2)
        rows.append([*first, *second, *[0] * (most - width)])
    return torch.tensor(rows)

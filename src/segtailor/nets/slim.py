"""Width-shared layers: one kernel of the greatest size and one batch norm per width (FasterSeg section 3.1).

A narrower layer uses the first rows and columns of the kernel. Where the host knows a width, maps and kernels are
sliced to it. Where only the device knows it (a one-hot row drawn there), maps keep the greatest width and the norm
writes zeros beyond the drawn one: shapes never change, so nothing waits and a whole step can be recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from segtailor.core.errors import Unsupported
from segtailor.nets.relax import one_hot

Widths: TypeAlias = Literal["own", "least", "most", "random"]


@dataclass(frozen=True, kw_only=True)
class Width:
    """How wide a map is: the `channels` of all options in ascending order, and which of them holds.

    `index` says it where the host knows. `row` has one weight per option, all zero but one: the choice where there is
    no index, and in any case what gradients of the choice flow to: by the score of the chosen option, or, where there
    is no index, `through_norms`, whose values of all options the row then weighs. A norm behind the next convolution
    removes the factor that a score is, so little but rounding errors flows through scores in training.
    """

    channels: tuple[int, ...]
    index: int | None = None
    row: Tensor | None = None
    through_norms: bool = False

    @property
    def extent(self) -> int:
        """The channels that a map of this width has: its own, or the greatest where zeros fill it."""
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


def width_row(how: Widths, options: int, *, generator: torch.Generator) -> Tensor:
    """Return the one-hot row of the `least` or `most` option or of a `random` one, drawn on the generator's device."""
    if how not in get_args(Widths) or how == "own":
        raise Unsupported(f"widths: '{how}'; choose least, most or random.")
    drawn = torch.randint(options, (1,), generator=generator, device=generator.device)
    if how == "random":
        return functional.one_hot(drawn[0], options).float()
    return one_hot(0 if how == "least" else options - 1, options, device=generator.device)


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

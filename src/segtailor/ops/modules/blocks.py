"""Modules of the residual and light blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from segtailor.ops.modules.conv import conv2d

if TYPE_CHECKING:
    from segtailor.ops.blocks import ConvSpec


def conv_norms(specs: Sequence[ConvSpec], *, relu: Sequence[bool]) -> nn.Sequential:
    """Build convolutions with norm, some with ReLU; a spec's stride is relative to the block's input."""
    layers: list[nn.Module] = []
    reached = 1
    for spec, active in zip(specs, relu, strict=True):
        step = spec.stride // reached
        layers += [
            conv2d(spec.inputs, spec.outputs, spec.kernel, stride=step, groups=spec.groups),
            nn.BatchNorm2d(spec.outputs),
        ]
        if active:
            layers.append(nn.ReLU())
        reached = spec.stride
    return nn.Sequential(*layers)


class ResidualBlock(nn.Module):
    """ReLU of body plus shortcut; the first `bare` specs are the body, a further one the shortcut."""

    def __init__(self, specs: Sequence[ConvSpec], *, bare: int) -> None:
        super().__init__()
        self.body = conv_norms(specs[:bare], relu=[True] * (bare - 1) + [False])
        self.shortcut = conv_norms(specs[bare:], relu=[False]) if len(specs) > bare else None

    def forward(self, image: Tensor) -> Tensor:
        """Run the block."""
        passed = image if self.shortcut is None else self.shortcut(image)
        return functional.relu(self.body(image) + passed)


class GhostBlock(nn.Module):
    """Primary channels and their cheap ghosts, concatenated."""

    def __init__(self, primary: ConvSpec, cheap: ConvSpec) -> None:
        super().__init__()
        self.primary = conv_norms([primary], relu=[True])
        self.cheap = conv_norms([cheap._replace(stride=1)], relu=[True])

    def forward(self, image: Tensor) -> Tensor:
        """Run the block."""
        real = self.primary(image)
        return torch.cat([real, self.cheap(real)], dim=1)


class ShuffleBlock(nn.Module):
    """Two branches, concatenated and shuffled so that the next block mixes them."""

    def __init__(self, specs: Sequence[ConvSpec]) -> None:
        super().__init__()
        self.main = conv_norms(specs[:3], relu=[True, False, True])
        self.side = conv_norms(specs[3:], relu=[False, True]) if len(specs) > 3 else None

    def forward(self, image: Tensor) -> Tensor:
        """Run the block."""
        if self.side is None:
            passed, worked = image.chunk(2, dim=1)
        else:
            passed, worked = self.side(image), image
        joined = torch.stack(
            [passed, self.main(worked)], dim=2
        )  # interleave channels: the shuffle of two groups
        return joined.flatten(1, 2)

"""What is not searched in the supernet: a stem, the way back up and the classifiers, one of each per set."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from segtailor.core.plan import OpCall, Operator, Shape
from segtailor.nets.supernet import Outputs
from segtailor.ops import Conv
from segtailor.ops.convolutions import HiddenClassifier
from segtailor.ops.modules.combining import resized
from segtailor.spaces.multi_resolution.grid import Grid, output_name
from segtailor.spaces.multi_resolution.paths import RATES

ANY = (8, 8)  # modules do not depend on the size of maps


def stem(ratio: int) -> nn.Sequential:
    """Build the stem of a set; the last halving keeps the channels (release)."""
    return nn.Sequential(
        _module(Conv(), 3, 4 * ratio, stride=2),
        _module(Conv(repeats=2), 4 * ratio, 8 * ratio, stride=2),
        _module(Conv(repeats=2), 8 * ratio, 8 * ratio, stride=2),
    )


class Ends(nn.Module):
    """From the last maps of all scales to the outputs; a coarse map meets the last finer ones on its way up."""

    def __init__(self, grid: Grid, ratio: int, classes: int) -> None:
        super().__init__()
        self.outputs = grid.outputs
        self.arms, self.refines = nn.ModuleDict(), nn.ModuleDict()
        for scale in range(1, grid.scales):
            for step, finer in enumerate(reversed(range(scale))):
                name = f"{RATES[scale]}_{step}"
                above, here = RATES[finer + 1] * ratio, RATES[finer] * ratio
                self.arms[name] = _module(Conv(kernel=1), above, here)
                self.refines[name] = _module(Conv(), 2 * here, here)
        self.heads = nn.ModuleDict(
            {
                output_name(rates): _module(HiddenClassifier(), len(rates) * RATES[0] * ratio, classes)
                for rates in grid.outputs
            }
        )

    def forward(self, lasts: Sequence[Tensor]) -> Outputs:
        """Return all outputs at the finest rate."""
        climbed = {RATES[scale]: self._climb(lasts, scale) for scale in range(len(lasts))}
        return {
            output_name(rates): self.heads[output_name(rates)](
                torch.cat([climbed[rate] for rate in rates], dim=1)
            )
            for rates in self.outputs
        }

    def _climb(self, lasts: Sequence[Tensor], scale: int) -> Tensor:
        top = lasts[scale]
        for step, finer in enumerate(reversed(lasts[:scale])):
            name = f"{RATES[scale]}_{step}"
            up = resized(self.arms[name](top), finer.shape[2:], align_corners=True)
            top = self.refines[name](torch.cat([up, finer], dim=1))
        return top


def _module(op: Operator, inputs: int, outputs: int, *, stride: int = 1) -> nn.Module:
    call = OpCall(op=op, inputs=(Shape(inputs, *ANY),), channels=outputs, stride=stride)
    module: nn.Module = op.module(call)
    return module

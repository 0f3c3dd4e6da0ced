"""From logits at a network's stride to labels at the image's size, without ever holding all classes at that size.

A graph of fixed size interpolates by two small matrix products, first along the width, then along the height for one
band of rows at a time, and takes the arg max of each band while it is still in the cache. On a CPU (512x1024, 19
classes) that takes a fraction of a resize and an arg max over the whole map. Weights of the matrices are those that
torch itself uses, so the labels are the same up to ties.
"""

from __future__ import annotations

import torch
from torch import Tensor

from segtailor.tasks.enlarging import enlarge
from segtailor.tasks.kind import Head

BAND = 2**19  # values of a band: 2 MiB, about what stays in a core's cache


class LabelHead(Head):
    """Enlarge logits (N, classes, h, w) and take the arg max; labels are (N, height, width)."""

    def __init__(self, *, align_corners: bool, label_type: torch.dtype) -> None:
        super().__init__()
        self.align_corners = align_corners
        self.label_type = label_type
        self.spans: list[tuple[int, int]] = []
        self.across: Tensor

    def prepare(self, logits: torch.Size, size: tuple[int, int]) -> None:
        """Keep the matrices for one size, to be used wherever a graph is exported."""
        (_, classes, height, width) = logits
        rows = max(1, BAND // (classes * size[1]))
        if (height, width) == size:
            return
        self.register_buffer("across", self._weights(width, size[1]), persistent=False)
        down = self._weights(height, size[0]).T
        for index, band in enumerate(torch.split(down, min(rows, size[0]))):
            used = band.abs().sum(0).nonzero().flatten()
            start, stop = int(used[0]), int(used[-1]) + 1
            self.spans.append((start, stop))
            self.register_buffer(f"down{index}", band[:, start:stop].contiguous(), persistent=False)

    def forward(self, logits: Tensor, size: tuple[int, int]) -> Tensor:
        """Return the labels. Outside of exported graphs torch's own kernels do the work."""
        if not self.spans or not torch.compiler.is_exporting():
            full = enlarge(logits, size, align_corners=self.align_corners)
            return full.argmax(1).to(self.label_type)
        wide = logits.to(self.across.dtype) @ self.across
        bands = []
        for index, (start, stop) in enumerate(self.spans):
            rows = getattr(self, f"down{index}") @ wide[:, :, start:stop]
            bands.append(rows.argmax(1).to(self.label_type))
        return torch.cat(bands, dim=1)

    def small(self, logits: Tensor) -> Tensor:
        """Return the labels at the stride of the logits."""
        return logits.argmax(1).to(self.label_type)

    def _weights(self, side: int, wanted: int) -> Tensor:
        """Return the weights (side, wanted) of a resize along one side: what it makes of each unit vector."""
        units = torch.eye(side)[None, :, :, None]
        return enlarge(units, (wanted, 1), align_corners=self.align_corners)[0, :, :, 0].contiguous()

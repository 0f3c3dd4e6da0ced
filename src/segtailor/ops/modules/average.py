"""Module of pooling into bins. Sizes come from the input at run time."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from segtailor.ops.average import bin_window


class Bins(nn.Module):
    """Average pooling into a fixed number of windows per side."""

    def __init__(self, bins: int) -> None:
        super().__init__()
        self.bins = bins

    def forward(self, image: Tensor) -> Tensor:
        """Pool."""
        if self.bins == 1:
            return image.mean((2, 3), keepdim=True)
        (high, down), (wide, right) = (bin_window(side, self.bins) for side in image.shape[2:])
        return functional.avg_pool2d(image, (high, wide), (down, right))

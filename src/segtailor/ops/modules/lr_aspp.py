"""Modules of the decoders' context pooling. Sizes come from the input at run time."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class ClampedWindow(nn.Module):
    """Average pooling whose window never exceeds the map."""

    def __init__(self, window: int, steps: tuple[int, int]) -> None:
        super().__init__()
        self.window = window
        self.steps = steps

    def forward(self, image: Tensor) -> Tensor:
        """Pool."""
        height, width = image.shape[2:]
        window = (min(self.window, height), min(self.window, width))
        return functional.avg_pool2d(image, window, self.steps)


class BroadcastMean(nn.Module):
    """The mean of each channel, everywhere."""

    def forward(self, image: Tensor) -> Tensor:
        """Return a view that repeats one pixel."""
        return image.mean((2, 3), keepdim=True).expand_as(image)

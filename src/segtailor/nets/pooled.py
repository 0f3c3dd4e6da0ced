"""Max pooling that keeps its input alone for the way back.

Torch keeps the place of every maximum in 8 bytes, four times the map itself in half precision: in a supernet with a
pooling on every edge a tenth of all memory. Finding the places again takes one kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


class MaxPooling(torch.autograd.Function):
    """Call as `MaxPooling.apply(image, kernel, stride, padding)`."""

    @staticmethod
    def forward(ctx: Any, image: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
        """Pool."""
        ctx.save_for_backward(image)
        ctx.window = kernel, stride, padding
        return functional.max_pool2d(image, kernel, stride, padding)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        """Pool again to know where the maxima were."""
        (image,) = ctx.saved_tensors
        with torch.enable_grad():
            again = image.detach().requires_grad_()
            pooled = functional.max_pool2d(again, *ctx.window)
            (found,) = torch.autograd.grad(pooled, again, gradient)
        return found, None, None, None

"""Modules that add, concatenate or resize feature maps. Sizes come from the inputs at run time."""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor, nn
from torch.nn import functional


class Zeros(nn.Module):
    """Zeros of the output size."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.channels = channels
        self.stride = stride

    def forward(self, image: Tensor) -> Tensor:
        """Make zeros."""
        sides = [-(-side // self.stride) for side in image.shape[2:]]
        return image.new_zeros((image.shape[0], self.channels, *sides))


class SumLike(nn.Module):
    """Sum of all inputs at the size of one of them."""

    def __init__(self, like: int, *, align_corners: bool) -> None:
        super().__init__()
        self.like = like
        self.align_corners = align_corners

    def forward(self, *maps: Tensor) -> Tensor:
        """Resize and add, in order."""
        size = maps[self.like].shape[2:]
        total = resized(maps[0], size, align_corners=self.align_corners)
        for image in maps[1:]:
            total = total + resized(image, size, align_corners=self.align_corners)
        return total


class ConcatLike(nn.Module):
    """Channels of all inputs at the size of one of them."""

    def __init__(self, like: int, *, align_corners: bool) -> None:
        super().__init__()
        self.like = like
        self.align_corners = align_corners

    def forward(self, *maps: Tensor) -> Tensor:
        """Resize and concatenate, in order."""
        size = maps[self.like].shape[2:]
        return torch.cat([resized(image, size, align_corners=self.align_corners) for image in maps], dim=1)


class ResizeLike(nn.Module):
    """The first input at the size of the second."""

    def __init__(self, *, align_corners: bool) -> None:
        super().__init__()
        self.align_corners = align_corners

    def forward(self, image: Tensor, like: Tensor) -> Tensor:
        """Resize."""
        return resized(image, like.shape[2:], align_corners=self.align_corners)


class ScaleBy(nn.Module):
    """The input at a ratio of its size, rounded down."""

    def __init__(self, ratio: Fraction, *, align_corners: bool) -> None:
        super().__init__()
        self.numerator, self.denominator = ratio.numerator, ratio.denominator
        self.align_corners = align_corners

    def forward(self, image: Tensor) -> Tensor:
        """Resize."""
        sides = [max(1, side * self.numerator // self.denominator) for side in image.shape[2:]]
        return resized(image, torch.Size(sides), align_corners=self.align_corners)


def resized(image: Tensor, size: torch.Size, *, align_corners: bool) -> Tensor:
    """Resize bilinearly; equal sizes, single pixels and exact halves take cheaper ways with the same result."""
    if image.shape[2:] == size:
        return image
    if image.shape[2] == 1 and image.shape[3] == 1:
        return image.expand(-1, -1, *size)
    if not align_corners and _is_half(image, size):
        return functional.avg_pool2d(image, 2)
    return functional.interpolate(image, size=size, mode="bilinear", align_corners=align_corners)


def _is_half(image: Tensor, size: torch.Size) -> bool:
    """Tell whether the size is exactly half of the image's; False for the dynamic sizes of an exported graph."""
    sides = (*image.shape[2:], *size)
    return all(type(side) is int for side in sides) and sides[:2] == (2 * size[0], 2 * size[1])

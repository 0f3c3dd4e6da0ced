"""Pooling over small windows, large ones and whole maps."""

import math

import pytest
import torch
from torch.nn import functional

from segtailor.core.errors import InvalidArchitecture
from segtailor.core.plan import OpCall, Operator, Shape
from segtailor.ops.pooling import AveragePool, BinPool, GlobalMean, WindowPool, bin_window
from segtailor.testing import check_operator


@pytest.mark.parametrize("source", [Shape(3, 12, 16), Shape(3, 13, 17), Shape(3, 1, 2)])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 2), (17, 8)])
def test_average_pooling_counts_as_built(source: Shape, kernel: int, stride: int) -> None:
    check_operator(OpCall(op=AveragePool(kernel=kernel), inputs=(source,), channels=3, stride=stride))


@pytest.mark.parametrize("source", [Shape(3, 12, 18), Shape(3, 13, 17), Shape(3, 2, 4), Shape(3, 1, 1)])
@pytest.mark.parametrize("bins", [1, 2, 3, 6])
def test_bins_count_as_built(source: Shape, bins: int) -> None:
    check_operator(OpCall(op=BinPool(bins=bins), inputs=(source,), channels=3))


@pytest.mark.parametrize("bins", [1, 2, 3, 6])
def test_bins_are_adaptive_pooling_where_the_size_divides(bins: int) -> None:
    image = torch.randn(2, 3, 12, 18)
    call = OpCall(op=BinPool(bins=bins), inputs=(Shape(3, 12, 18),), channels=3)
    torch.testing.assert_close(call.op.module(call)(image), functional.adaptive_avg_pool2d(image, bins))


@pytest.mark.parametrize("side", range(1, 40))
@pytest.mark.parametrize("bins", [1, 2, 3, 6])
def test_bins_cover_every_pixel_and_no_more(side: int, bins: int) -> None:
    window, step = bin_window(side, bins)
    starts = [index * step for index in range(min(bins, side))]
    assert {pixel for start in starts for pixel in range(start, start + window)} == set(range(side))


def test_one_bin_sees_everything() -> None:
    source = Shape(3, 12, 18)
    assert math.isinf(OpCall(op=BinPool(), inputs=(source,), channels=3).field())
    assert OpCall(op=BinPool(bins=6), inputs=(source,), channels=3).field() == 3


def test_windows_that_cannot_be_are_refused() -> None:
    with pytest.raises(InvalidArchitecture, match="odd"):
        AveragePool(kernel=4)
    with pytest.raises(InvalidArchitecture, match="at least 1"):
        BinPool(bins=0)


def call(op: Operator, *source: int, channels: int | None = None) -> OpCall:
    return OpCall(op=op, inputs=(Shape(*source),), channels=channels or source[0])


@pytest.mark.parametrize(
    "size", [(64, 128), (128, 64), (49, 49), (52, 104), (32, 64), (4, 6), (1, 1), (49, 500)]
)
@pytest.mark.parametrize("op", [WindowPool(), WindowPool(window=3, steps=(1, 2)), GlobalMean()])
def test_context_pooling_counts_and_runs_as_defined(op: Operator, size: tuple[int, int]) -> None:
    check_operator(call(op, 2, *size))


def test_the_window_at_full_size_sees_the_published_rows_and_columns() -> None:
    image = torch.randn(1, 2, 64, 128)
    pooled = WindowPool().module(call(WindowPool(), 2, 64, 128))(image)
    means = [image[:, :, 0:49, start : start + 49].mean((2, 3)) for start in (0, 20, 40, 60)]
    torch.testing.assert_close(pooled, torch.stack(means, dim=2)[:, :, None])


def test_the_window_steps_down_portrait_maps() -> None:
    image = torch.randn(1, 2, 90, 30)
    pooled = WindowPool().module(call(WindowPool(), 2, 90, 30))(image)
    means = [image[:, :, start : start + 49].mean((2, 3)) for start in (0, 16, 32)]
    torch.testing.assert_close(pooled, torch.stack(means, dim=2)[..., None])


def test_a_window_larger_than_the_map_gives_the_mean() -> None:
    image = torch.randn(2, 3, 26, 45)
    pooled = WindowPool().module(call(WindowPool(), 3, 26, 45))(image)
    torch.testing.assert_close(pooled, image.mean((2, 3), keepdim=True))


@pytest.mark.parametrize("op", [WindowPool(), GlobalMean()])
def test_pooling_cannot_change_channels(op: Operator) -> None:
    with pytest.raises(InvalidArchitecture, match="channels"):
        call(op, 2, 8, 8, channels=3).output()

import math

import pytest
import torch
from torch.nn import functional

from segtailor.core.errors import InvalidArchitecture
from segtailor.core.plan import OpCall, Shape
from segtailor.ops.average import AveragePool, BinPool, bin_window
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

import pytest
import torch

from segtailor.core.errors import InvalidArchitecture
from segtailor.core.plan import OpCall, Operator, Shape
from segtailor.ops import Conv, FactorisedReduction
from segtailor.ops.lr_aspp import GlobalMean, WindowPool
from segtailor.testing import check_operator


def call(op: Operator, *source: int, channels: int | None = None, stride: int = 1) -> OpCall:
    return OpCall(op=op, inputs=(Shape(*source),), channels=channels or source[0], stride=stride)


@pytest.mark.parametrize(
    "size", [(64, 128), (128, 64), (49, 49), (52, 104), (32, 64), (4, 6), (1, 1), (49, 500)]
)
@pytest.mark.parametrize("op", [WindowPool(), WindowPool(window=3, steps=(1, 2)), GlobalMean()])
def test_context_pooling_counts_and_runs_as_defined(op: Operator, size: tuple[int, int]) -> None:
    check_operator(call(op, 2, *size))


@pytest.mark.parametrize("size", [(9, 13), (40, 24), (1, 1)])
@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "stride"),
    [
        (Conv(kernel=3, dilation=6, groups=4), 8, 4, 1),
        (Conv(kernel=3, dilation=18, groups=4), 8, 4, 1),
        (Conv(kernel=1, first=True), 6, 4, 1),
        (FactorisedReduction(first=True, norm="each"), 6, 4, 2),
    ],
)
def test_grouped_and_skip_forms_count_and_run_as_defined(
    op: Operator, inputs: int, outputs: int, stride: int, size: tuple[int, int]
) -> None:
    check_operator(call(op, inputs, *size, channels=outputs, stride=stride))


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

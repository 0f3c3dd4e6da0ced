import pytest
import torch
from torch.nn import functional

from segtailor.spaces.inverted_residual.fused import by_phases, depthwise


@pytest.mark.parametrize("size", [(8, 12), (7, 9), (2, 3), (1, 1)])
@pytest.mark.parametrize(
    ("kernel", "dilation", "stride"), [(3, 2, 1), (3, 2, 2), (5, 3, 1), (3, 2, 4), (3, 3, 3)]
)
def test_phases_equal_the_dilated_convolution(
    size: tuple[int, int], kernel: int, dilation: int, stride: int
) -> None:
    generator = torch.Generator().manual_seed(kernel)
    maps = torch.randn(2, 4, *size, generator=generator, dtype=torch.float64, requires_grad=True)
    kernels = torch.randn(4, 1, kernel, kernel, generator=generator, dtype=torch.float64, requires_grad=True)
    padding = dilation * (kernel // 2)
    wanted = functional.conv2d(maps, kernels, None, stride, padding, dilation, groups=4)
    found = by_phases(maps, kernels, stride=stride, dilation=dilation)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(depthwise(maps, kernels, stride=stride, dilation=dilation), wanted)
    slope = torch.randn(wanted.shape, generator=generator, dtype=torch.float64)
    for got, right in zip(
        *(torch.autograd.grad(out, (maps, kernels), slope) for out in (found, wanted)), strict=True
    ):
        torch.testing.assert_close(got, right)


def test_channels_stay_last_in_memory() -> None:
    maps = torch.randn(2, 4, 6, 10).contiguous(memory_format=torch.channels_last)
    found = by_phases(maps, torch.randn(4, 1, 3, 3), stride=1, dilation=2)
    assert found.is_contiguous(memory_format=torch.channels_last)

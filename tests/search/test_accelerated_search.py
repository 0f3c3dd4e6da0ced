"""What only an accelerator can show of a search; run by `make test-device` where there is one."""

from __future__ import annotations

import pytest
import torch

from segtailor.nets.phases import depthwise
from segtailor.search.gradient import GradientSearch
from tests.search.gradient_toys import OPTIONS, problem, settings

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_steps_are_recorded_again_each_time_candidates_are_dropped() -> None:
    how = settings(steps=80, remove_below=0.15, marks=8, record=True, per_image=True)
    job = GradientSearch(how, problem(device="cuda"))
    for _ in job.steps():
        pass
    left = [row["candidates"] for row in job.trajectory]
    assert len(set(left)) > 2, (
        "dropped more than once"
    )  # the second time nothing of the first recording was left
    assert left[0] == len(OPTIONS)


@pytest.mark.parametrize("stride", [1, 2])
def test_dilated_depthwise_convolutions_are_those_of_the_cpu(stride: int) -> None:
    torch.manual_seed(0)
    maps, kernels = torch.randn(2, 8, 15, 18), torch.randn(8, 1, 3, 3)
    wanted = depthwise(maps, kernels, stride=stride, dilation=2)
    found = depthwise(maps.cuda(), kernels.cuda(), stride=stride, dilation=2)
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-3, atol=1e-3)

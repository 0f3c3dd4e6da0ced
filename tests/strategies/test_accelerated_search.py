"""What only an accelerator can show of a search; run by `make test-device` where there is one."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from segtailor.spaces.hyper_cell.fused import MaxPooling
from segtailor.spaces.inverted_residual.fused import depthwise
from segtailor.strategies.gradient import GradientSearch
from tests.strategies.gradient_toys import OPTIONS, problem, settings
from tests.strategies.hungry import HungryOps

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


@pytest.mark.parametrize("when_recorded", [False, True])
def test_a_recorded_search_that_runs_out_of_memory_goes_on(when_recorded: bool) -> None:
    space = HungryOps(blocks=1, most=2, when_recorded=when_recorded)
    job = GradientSearch(settings(steps=20, record=True), problem(space, device="cuda"))
    messages = [step.message for step in job.steps() if step.message]
    assert sum("the search goes on with 2" in text for text in messages) == 1
    assert job.result()["skipped"] == 0


def test_pooling_that_keeps_its_input_alone_has_the_same_gradient() -> None:
    torch.manual_seed(0)
    image = torch.randn(2, 8, 15, 18, device="cuda", dtype=torch.bfloat16)
    image = image.contiguous(memory_format=torch.channels_last)
    gradients = []
    for pool in (MaxPooling.apply, functional.max_pool2d):
        own = image.clone().requires_grad_()
        (pool(own, 3, 2, 1) ** 2).sum().backward()
        gradients.append(own.grad)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("stride", [1, 2])
def test_dilated_depthwise_convolutions_are_those_of_the_cpu(stride: int) -> None:
    torch.manual_seed(0)
    maps, kernels = torch.randn(2, 8, 15, 18), torch.randn(8, 1, 3, 3)
    wanted = depthwise(maps, kernels, stride=stride, dilation=2)
    found = depthwise(maps.cuda(), kernels.cuda(), stride=stride, dilation=2)
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-3, atol=1e-3)

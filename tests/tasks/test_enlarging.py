"""Enlarging: the values and the gradient of torch, by another way."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from segtailor.tasks.enlarging import resize_bilinear, weights

SIZES = [((5, 7), (40, 56)), ((5, 7), (41, 50)), ((8, 8), (3, 5)), ((1, 1), (9, 4)), ((6, 1), (6, 12))]


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(("source", "target"), SIZES)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_values_and_gradient_equal_those_of_torch(
    source: tuple[int, int], target: tuple[int, int], align_corners: bool, layout: torch.memory_format
) -> None:
    torch.manual_seed(0)
    ours = torch.randn(2, 3, *source).to(memory_format=layout).requires_grad_()
    theirs = ours.detach().clone().requires_grad_()
    found = resize_bilinear(ours, target, align_corners=align_corners)
    expected = functional.interpolate(theirs, size=target, mode="bilinear", align_corners=align_corners)
    assert torch.equal(found, expected)
    given = torch.randn_like(expected)
    found.backward(given)
    expected.backward(given)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-5)


def test_the_gradient_passes_a_numerical_check() -> None:
    maps = torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: resize_bilinear(x, (7, 9), align_corners=False), (maps,))


def test_the_gradient_has_the_type_of_the_maps() -> None:
    maps = torch.randn(1, 2, 3, 4, dtype=torch.bfloat16, requires_grad=True)
    resize_bilinear(maps, (6, 8), align_corners=False).float().sum().backward()
    assert maps.grad is not None
    assert maps.grad.dtype == torch.bfloat16
    torch.testing.assert_close(maps.grad, torch.full_like(maps.grad, 4.0))


def test_without_a_gradient_the_graph_keeps_torch_operators_for_export() -> None:
    with torch.no_grad():
        assert (
            resize_bilinear(torch.randn(1, 1, 2, 2, requires_grad=True), (4, 4), align_corners=False).grad_fn
            is None
        )


@pytest.mark.parametrize("align_corners", [False, True])
def test_every_target_pixel_gets_a_whole_share(align_corners: bool) -> None:
    table = weights(5, 13, align_corners, torch.float32, torch.device("cpu"))
    torch.testing.assert_close(table.sum(0), torch.ones(13))

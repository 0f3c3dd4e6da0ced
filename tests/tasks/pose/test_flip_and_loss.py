"""Mirroring is exact whatever the stride, and the loss is what one would write down."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from segtailor.core.errors import DataProblem
from segtailor.tasks.pose import (
    COCO,
    MPII,
    HeatMaps,
    flip_test,
    heatmap_loss,
    mirror_joints,
    mirror_maps,
    resize_maps,
)


def random_joints(count: int, size: tuple[int, int]) -> np.ndarray:
    rng = np.random.default_rng(count)
    places = rng.uniform(0, (size[1] - 1, size[0] - 1), (count, 2))
    return np.column_stack((places, rng.integers(0, 3, count))).astype(np.float32)


@pytest.mark.parametrize("skeleton", [MPII, COCO])
def test_maps_of_mirrored_joints_are_the_mirrored_maps(skeleton) -> None:  # noqa: ANN001
    for stride in (1, 4, 8):
        maps = HeatMaps(size=(64, 48), stride=stride)
        joints = random_joints(skeleton.count, maps.size)
        plain, _ = maps.encode(torch.from_numpy(joints))
        turned, _ = maps.encode(torch.from_numpy(mirror_joints(joints, 48, skeleton)))
        torch.testing.assert_close(mirror_maps(turned, skeleton), plain)


def test_mirroring_twice_changes_nothing_and_once_swaps_the_sides() -> None:
    joints = random_joints(16, (64, 48))
    np.testing.assert_allclose(mirror_joints(mirror_joints(joints, 48, MPII), 48, MPII), joints, atol=1e-5)
    left, right = MPII.joints.index("left wrist"), MPII.joints.index("right wrist")
    joints[right] = (10, 20, 2)
    assert mirror_joints(joints, 48, MPII)[left].tolist() == [37, 20, 2]


def test_the_flip_test_averages_both_views() -> None:
    def network(
        images: Tensor,
    ) -> Tensor:  # joint j sees brightness times j, and drifts one pixel to the right
        return images.mean(1, keepdim=True).roll(1, -1) * torch.arange(16.0)[None, :, None, None]

    images = torch.rand(2, 3, 8, 6)
    found = flip_test(network, images, MPII)
    grey = images.mean(1)
    for joint, other in enumerate((5, 4, 3, 2, 1, 0, 6, 7, 8, 9, 15, 14, 13, 12, 11, 10)):
        expected = (joint * grey.roll(1, -1) + other * grey.roll(-1, -1)) / 2
        torch.testing.assert_close(found[:, joint], expected)


def test_the_loss_is_the_mean_over_counted_joints() -> None:
    maps, target, weights = (
        torch.rand(2, 3, 4, 5),
        torch.rand(2, 3, 4, 5),
        torch.tensor([[1.0, 0, 1], [0, 0, 1]]),
    )
    total = 0.0
    for picture, joint in ((0, 0), (0, 2), (1, 2)):
        total += float(((maps[picture, joint] - target[picture, joint]) ** 2).mean())
    assert heatmap_loss(maps, target, weights).item() == pytest.approx(total / 3, rel=1e-5)


def test_a_batch_without_labelled_joints_costs_nothing_and_moves_nothing() -> None:
    maps = torch.rand(2, 3, 4, 5, requires_grad=True)
    loss = heatmap_loss(maps, torch.rand(2, 3, 4, 5), torch.zeros(2, 3))
    loss.backward()
    assert loss.item() == 0
    assert maps.grad is not None
    assert maps.grad.abs().max() == 0


def test_coarser_maps_are_resized_to_the_target() -> None:
    coarse, target = torch.rand(1, 16, 8, 6), torch.rand(1, 16, 16, 12)
    expected = ((resize_maps(coarse, (16, 12)) - target) ** 2).mean()
    torch.testing.assert_close(heatmap_loss(coarse, target, torch.ones(1, 16)), expected)
    ramp = torch.arange(8.0)[None, None, None, :].expand(1, 1, 8, 8)  # pixel centres stay in place
    assert resize_maps(ramp, (16, 16))[0, 0, 5, 4].item() == pytest.approx((4 + 0.5) / 2 - 0.5)


def test_another_number_of_outputs_than_joints_is_refused() -> None:
    with pytest.raises(DataProblem, match="one output per joint"):
        heatmap_loss(torch.rand(1, 17, 8, 6), torch.rand(1, 16, 8, 6), torch.ones(1, 16))
    with pytest.raises(DataProblem, match="one output per joint"):
        heatmap_loss(torch.rand(1, 16, 8, 6), torch.rand(1, 16, 8, 6), torch.ones(1, 17))

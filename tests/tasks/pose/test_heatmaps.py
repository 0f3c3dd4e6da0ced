"""Heat maps against Gaussians written out pixel by pixel; mirroring for any stride; the loss against its formula."""

from __future__ import annotations

import math

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

MAPS = HeatMaps(size=(64, 48))


def joints(*rows: tuple[float, float, float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float32)


def plain_gaussian(x: float, y: float, *, height: int, width: int, stride: int, sigma: float) -> np.ndarray:
    """Weigh every map pixel by its distance from the joint; pixel i is at picture stride * (i + 1/2) - 1/2."""
    field = np.zeros((height, width))
    for row in range(height):
        for column in range(width):
            away_x = (stride * (column + 0.5) - 0.5 - x) / stride
            away_y = (stride * (row + 0.5) - 0.5 - y) / stride
            field[row, column] = math.exp(-(away_x**2 + away_y**2) / (2 * sigma**2))
    return field


def test_a_map_is_the_gaussian_around_its_joint() -> None:
    maps, weights = MAPS.encode(joints((13.2, 40.7, 2), (0, 63, 1)))
    assert maps.shape == (2, 16, 12)
    assert weights.tolist() == [1, 1]
    for field, (x, y) in zip(maps, ((13.2, 40.7), (0, 63)), strict=True):
        expected = plain_gaussian(x, y, height=16, width=12, stride=4, sigma=2)
        np.testing.assert_allclose(field.numpy(), expected, atol=1e-6)


def test_unlabelled_and_outside_joints_give_empty_maps_without_weight() -> None:
    rows = joints((20, 20, 0), (-0.6, 5, 2), (47.5, 5, 2), (5, 63.5, 2), (5, -40, 1), (1e9, 1e9, 2))
    maps, weights = MAPS.encode(rows)
    assert weights.tolist() == [0] * 6
    assert maps.abs().max() == 0
    assert MAPS.encode(joints((-0.5, -0.5, 2), (47.4, 63.4, 2)))[1].tolist() == [1, 1]


def test_a_batch_is_encoded_like_its_parts() -> None:
    batch = torch.rand(3, 5, 3) * 60
    maps, weights = MAPS.encode(batch)
    assert maps.shape == (3, 5, 16, 12)
    for index in range(3):
        alone, weight = MAPS.encode(batch[index])
        assert torch.equal(maps[index], alone)
        assert torch.equal(weights[index], weight)


def test_decoding_finds_every_joint_within_a_quarter_of_a_map_pixel() -> None:
    rng = np.random.default_rng(1)
    places = np.column_stack((rng.uniform(6, 42, 400), rng.uniform(6, 57, 400), np.full(400, 2)))
    found = MAPS.decode(MAPS.encode(torch.from_numpy(places))[0]).numpy()
    assert np.abs(found[:, :2] - places[:, :2]).max() <= 4 * 0.25 + 1e-4
    assert (found[:, 2] > 0.93).all()  # the peak lies at most half a map pixel away in each direction


def test_decoding_moves_a_quarter_pixel_towards_the_higher_neighbour() -> None:
    field = torch.zeros(1, 16, 12)
    field[0, 5, 3] = 1.0
    field[0, 5, 4], field[0, 5, 2] = 0.6, 0.4  # to the right
    field[0, 4, 3], field[0, 6, 3] = 0.9, 0.1  # up
    x, y, peak = MAPS.decode(field)[0].tolist()
    assert (x, y, peak) == (4 * (3.25 + 0.5) - 0.5, 4 * (4.75 + 0.5) - 0.5, 1.0)


@pytest.mark.parametrize("corner", [(0, 0), (0, 11), (15, 0), (15, 11)])
def test_at_the_border_nothing_is_moved(corner: tuple[int, int]) -> None:
    field = torch.rand(1, 16, 12) * 0.5
    field[0, corner[0], corner[1]] = 1.0
    assert MAPS.decode(field)[0, :2].tolist() == [4 * corner[1] + 1.5, 4 * corner[0] + 1.5]


def test_maps_of_another_resolution_decode_to_the_same_picture() -> None:
    coarse = HeatMaps(size=(64, 48), stride=8)
    target, _ = coarse.encode(joints((11.5, 27.5, 2)))
    np.testing.assert_allclose(MAPS.decode(target)[0, :2], (11.5, 27.5), atol=1e-5)


def test_empty_and_broken_maps_have_no_confidence() -> None:
    maps = torch.stack((torch.zeros(16, 12), torch.full((16, 12), math.nan), torch.full((16, 12), -3.0)))
    found = MAPS.decode(maps)
    assert torch.isfinite(found).all()
    assert found[:, 2].tolist() == [0, 0, 0]


def test_a_place_that_is_no_number_is_refused_unless_unlabelled() -> None:
    with pytest.raises(DataProblem, match="not a number"):
        MAPS.encode(joints((math.nan, 3, 2)))
    maps, weights = MAPS.encode(joints((math.nan, math.inf, 0)))
    assert weights.tolist() == [0]
    assert maps.abs().max() == 0


def test_impossible_settings_and_shapes_are_refused() -> None:
    for settings in ({"size": (62, 48)}, {"stride": 0}, {"sigma": 0.0}):
        with pytest.raises(DataProblem, match="cannot be made"):
            HeatMaps(**settings)
    with pytest.raises(DataProblem, match=r"\(16, 2\)"):
        MAPS.encode(torch.zeros(16, 2))


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

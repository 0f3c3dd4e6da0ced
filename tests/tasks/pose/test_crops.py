"""Crops: geometry there and back, pixels where the joints say, and boxes that hold nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from segtailor.core.errors import DataProblem
from segtailor.tasks.pose import MPII, Variation, crop_of, cut_person
from segtailor.tasks.pose.persons import Box, Person, PersonView


def person(box: Box = (20.0, 10.0, 30.0, 60.0), joints: np.ndarray | None = None) -> Person:
    if joints is None:
        joints = np.column_stack((np.linspace(22, 48, 16), np.linspace(12, 68, 16), np.full(16, 2)))
    return Person(id="7", picture="a.png", box=box, joints=joints.astype(np.float32))


def noise(height: int = 90, width: int = 80) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_the_whole_picture_at_its_own_size_is_cut_unchanged() -> None:
    image = noise()
    crop = crop_of((0, 0, 80, 90), (90, 80), margin=1)
    np.testing.assert_array_equal(crop.cut(image), image)
    np.testing.assert_array_equal(crop_of((5, 7, 20, 30), (30, 20), margin=1).cut(image), image[7:37, 5:25])


def test_joints_go_there_and_back() -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        box = (*rng.uniform(-50, 200, 2), *rng.uniform(1, 300, 2))
        turned = Variation(
            zoom=rng.uniform(0.75, 1.25), degrees=rng.uniform(-30, 30), mirrored=rng.random() < 0.5
        )
        crop = crop_of(box, (256, 192), variation=turned)
        joints = np.column_stack((rng.uniform(0, 300, (17, 2)), rng.random(17)))
        back = crop.to_picture(crop.to_crop(joints))
        np.testing.assert_allclose(back, joints, atol=2e-3)


def test_the_box_fills_the_crop_up_to_the_margin_and_keeps_its_proportions() -> None:
    for box in ((20.0, 10.0, 30.0, 60.0), (20.0, 10.0, 60.0, 30.0)):
        crop = crop_of(box, (256, 192), margin=1.25)
        x, y, width, height = box
        corners = np.array([[x - 0.5, y - 0.5, 1], [x + width - 0.5, y + height - 0.5, 1]])
        (left, top, _), (right, bottom, _) = crop.to_crop(corners)
        assert (right - left) / (bottom - top) == pytest.approx(width / height)
        assert max((right - left) / 192, (bottom - top) / 256) == pytest.approx(1 / 1.25)
        assert ((left + right) / 2, (top + bottom) / 2) == pytest.approx((95.5, 127.5), abs=1e-3)


@pytest.mark.parametrize(
    "variation",
    [
        Variation(),
        Variation(zoom=1.3, degrees=25),
        Variation(mirrored=True),
        Variation(degrees=-40, mirrored=True),
    ],
)
def test_pixels_move_with_the_joints(variation: Variation) -> None:
    image = np.zeros((90, 80, 3), np.uint8)
    image[31:36, 38:43] = 255  # around joint 3
    joints = np.zeros((16, 3))
    joints[3] = (40, 33, 2)
    pixels, moved, crop = cut_person(
        PersonView(image, person(joints=joints)), MPII, (128, 128), variation=variation
    )
    where = 2 if variation.mirrored else 3  # the left hip becomes the right one
    light = pixels[:, :, 0].astype(float)
    rows, columns = np.mgrid[:128, :128]
    centre = ((light * columns).sum() / light.sum(), (light * rows).sum() / light.sum())
    assert moved[where, :2] == pytest.approx(centre, abs=0.2)
    assert moved[:, 2].tolist() == [2.0 if joint == where else 0.0 for joint in range(16)]
    np.testing.assert_allclose(crop.to_picture(moved[where]), (40, 33, 2), atol=1e-3)


def test_a_clockwise_turn_moves_what_is_above_to_the_right() -> None:
    crop = crop_of((0, 0, 100, 100), (100, 100), margin=1, variation=Variation(degrees=90))
    x, y, _ = crop.to_crop(np.array([49.5, 9.5, 1.0]))
    assert (x, y) == pytest.approx((89.5, 49.5))


def test_a_much_larger_picture_is_averaged_not_skipped_through() -> None:
    stripes = np.zeros((256, 256, 3), np.uint8)
    stripes[:, ::2] = 200
    pixels = crop_of((0, 0, 256, 256), (32, 32), margin=1).cut(stripes)
    assert np.abs(pixels.astype(int) - 100).max() <= 1


@pytest.mark.parametrize("box", [(5, 5, 0, 10), (5, 5, 10, 0), (5, 5, -3, 10), (5, 5, 1e-320, 0)])
def test_a_box_without_area_is_refused(box: Box) -> None:
    with pytest.raises(DataProblem, match=r"holds nothing.*remove the person"):
        crop_of(box, (64, 64))


def test_a_box_that_is_no_box_is_refused() -> None:
    for box in ((math.nan, 0, 5, 5), (0, 0, math.inf, 5), (0, 0, 5)):
        with pytest.raises(DataProblem, match="Give four numbers"):
            crop_of(box, (64, 64))  # type: ignore[arg-type]


def test_joints_outside_the_picture_are_unlabelled_even_inside_the_crop() -> None:
    joints = person().joints.copy()
    joints[4] = (25, 91, 2)  # below the picture, inside the enlarged box
    _, moved, crop = cut_person(PersonView(noise(), person((20, 60, 30, 40), joints)), MPII, (128, 128))
    assert (crop.to_crop(joints[4])[:2] < 128).all()
    assert moved[4].tolist() == [0, 0, 0]
    assert moved[0, 1] < 0 < moved[0, 2]  # in the picture, above the crop: part of the truth


def test_wrong_joints_are_refused_by_name() -> None:
    with pytest.raises(DataProblem, match=r"person 7 has joints of shape \(17, 3\)"):
        cut_person(PersonView(noise(), person(joints=np.ones((17, 3)))), MPII, (64, 64))
    bad = person().joints.copy()
    bad[2, 0] = math.nan
    with pytest.raises(DataProblem, match="joint 2 at"):
        cut_person(PersonView(noise(), person(joints=bad)), MPII, (64, 64))

"""Skeletons over pictures."""

from __future__ import annotations

import math

import numpy as np
import pytest

from segtailor.core.errors import DataProblem
from segtailor.tasks.pose import MPII, draw_skeleton
from segtailor.tasks.pose.drawing import COLOURS, limb_colour

GREY = 128


def blank(side: int = 128) -> np.ndarray:
    return np.full((side, side, 3), GREY, np.uint8)


def standing(side: int = 128) -> np.ndarray:
    """Every joint in its own place on a grid, none close to another."""
    grid = np.array([(x, y) for y in range(4) for x in range(4)], float)
    return np.column_stack(((grid + 0.5) * side / 4, np.full(16, 0.9)))


def painted(image: np.ndarray) -> np.ndarray:
    return (image != GREY).any(2)


def test_joints_show_the_colour_of_their_side() -> None:
    joints = standing()
    drawn = draw_skeleton(blank(), [joints], MPII)
    for joint in range(16):
        x, y = joints[joint, :2].astype(int)
        assert drawn[y, x].tolist() == list(COLOURS[MPII.side(joint)])


def test_limbs_are_drawn_between_their_joints_and_the_picture_is_left_alone() -> None:
    image, joints = blank(), standing()
    drawn = draw_skeleton(image, [joints], MPII)
    for one, other in MPII.limbs:
        x, y = ((joints[one] + joints[other]) / 2)[:2].astype(int)
        assert painted(drawn)[y, x]
    assert (image == GREY).all()
    assert not painted(drawn)[:8].any()  # above everyone


def test_uncertain_missing_and_broken_joints_are_left_out_with_their_limbs() -> None:
    for bad in ((64, 64, 0.1), (math.nan, 64, 0.9), (64, math.inf, 1), (0, 0, 0), (-1e30, 5, 1)):
        joints = np.zeros((16, 3))
        joints[0], joints[1] = (20, 100, 0.9), bad
        drawn = painted(draw_skeleton(blank(), [joints], MPII))
        assert drawn[95:106, 15:26].any()
        drawn[95:106, 15:26] = False
        assert not drawn.any()


def test_lines_grow_with_the_picture() -> None:
    share = [painted(draw_skeleton(blank(side), [standing(side)], MPII)).mean() for side in (128, 512)]
    assert share[1] == pytest.approx(share[0], rel=0.25)


def test_several_people_and_nobody() -> None:
    left, right = standing(), standing()
    left[:, 0] /= 2
    right[:, 0] = 64 + right[:, 0] / 2
    both = painted(draw_skeleton(blank(), [left, right], MPII))
    assert both[:, :64].any()
    assert both[:, 64:].any()
    np.testing.assert_array_equal(draw_skeleton(blank(), [], MPII), blank())


def test_limbs_take_the_side_of_their_ends() -> None:
    assert limb_colour(MPII, (0, 1)) == COLOURS["right"]
    assert limb_colour(MPII, (7, 13)) == COLOURS["left"]
    assert limb_colour(MPII, (8, 9)) == COLOURS["middle"]
    assert limb_colour(MPII, (2, 3)) == COLOURS["middle"]


def test_another_joint_count_is_refused() -> None:
    with pytest.raises(DataProblem, match=r"\(17, 3\) do not fit 'mpii'"):
        draw_skeleton(blank(), [np.ones((17, 3))], MPII)

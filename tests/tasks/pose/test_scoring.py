"""PCKh against a count written out joint by joint."""

from __future__ import annotations

import math

import numpy as np
import pytest

from segtailor.core.errors import DataProblem
from segtailor.tasks.pose import COCO, MPII, pckh

UNSCORED = ("pelvis", "thorax")


def made_up(people: int = 30) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    truth = np.dstack((rng.uniform(0, 200, (people, 16, 2)), rng.integers(0, 3, (people, 16))))
    heads = rng.uniform(10, 40, people)
    found = truth[..., :2] + rng.normal(0, 8, (people, 16, 2))
    return found, truth, heads


@pytest.mark.parametrize("threshold", [0.5, 0.1])
def test_pckh_equals_a_plain_count(threshold: float) -> None:
    found, truth, heads = made_up()
    right, counted = dict.fromkeys(MPII.joints, 0), dict.fromkeys(MPII.joints, 0)
    for person in range(len(truth)):
        for joint, name in enumerate(MPII.joints):
            if truth[person, joint, 2] > 0:
                counted[name] += 1
                away = math.dist(found[person, joint], truth[person, joint, :2])
                right[name] += away <= threshold * heads[person]
    score = pckh(found, truth, heads, skeleton=MPII, threshold=threshold)
    for name in MPII.joints:
        assert score.per_joint[name] == pytest.approx(right[name] / counted[name])
    names = [name for name in MPII.joints if name not in UNSCORED]
    assert score.counted == sum(counted[name] for name in names)
    assert score.mean == pytest.approx(sum(right[name] for name in names) / score.counted)
    assert 0 < score.mean < 1


def test_a_joint_exactly_at_the_limit_is_right_and_just_beyond_is_wrong() -> None:
    truth = np.ones((1, 16, 3))
    found = truth[..., :2].copy()
    found[0, 0, 0] += 5
    found[0, 1, 0] += 5.001
    score = pckh(found, truth, [10.0], skeleton=MPII)
    assert (score.per_joint["right ankle"], score.per_joint["right knee"]) == (1, 0)
    assert score.mean == pytest.approx(13 / 14)


def test_people_without_a_head_size_are_left_out() -> None:
    found, truth, heads = made_up(4)
    alone = pckh(found[:1], truth[:1], heads[:1], skeleton=MPII)
    for missing in (None, math.nan, 0.0, -1.0):
        assert pckh(found, truth, [heads[0], missing, missing, missing], skeleton=MPII) == alone


def test_nothing_labelled_gives_no_figure() -> None:
    truth = np.zeros((2, 16, 3))
    score = pckh(truth, truth, [5, 5], skeleton=MPII)
    assert score.mean is None
    assert set(score.per_joint.values()) == {None}
    assert pckh(np.zeros((0, 16, 3)), np.zeros((0, 16, 3)), [], skeleton=MPII).mean is None


def test_a_found_place_that_is_no_number_is_wrong() -> None:
    truth = np.ones((1, 16, 3))
    score = pckh(np.full((1, 16, 2), math.nan), truth, [10], skeleton=MPII)
    assert score.mean == 0


def test_another_skeleton_is_refused() -> None:
    found, truth, heads = made_up(3)
    with pytest.raises(DataProblem, match=r"\(people, 17, 3\)"):
        pckh(found, truth, heads, skeleton=COCO)
    with pytest.raises(DataProblem, match="head sizes"):
        pckh(found, truth, heads[:2], skeleton=MPII)

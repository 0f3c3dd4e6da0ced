"""Rendered people: repeatable, varied, and drawn where their joints say."""

from __future__ import annotations

import numpy as np
import pytest

from segtailor.core.errors import DataProblem, UnknownName
from segtailor.data.people import People
from segtailor.tasks.pose.persons import PersonView
from segtailor.tasks.pose.skeletons import MPII

MANY = People(images={"train": 60, "val": 5}, size=(96, 80), seed=3)


@pytest.fixture(scope="module")
def views() -> list[PersonView]:
    return [sample.read() for sample in MANY.samples("train")]


def test_the_same_seed_draws_the_same_people_and_others_do_not() -> None:
    first, again = (MANY.samples("train")[7].read() for _ in range(2))
    np.testing.assert_array_equal(first.image, again.image)
    np.testing.assert_array_equal(first.person.joints, again.person.joints)
    others = [
        MANY.samples("train")[8],
        MANY.samples("val")[0],
        People(seed=4, size=(96, 80)).samples("train")[7],
    ]
    for other in others:
        assert not np.array_equal(other.read().image, first.image)
    fingerprints = {sample.fingerprint for sample in (MANY.samples("train")[7], *others)}
    assert len(fingerprints) == 4


def test_records_are_whole(views: list[PersonView]) -> None:
    for image, person in views:
        assert image.shape == (96, 80, 3)
        assert image.dtype == np.uint8
        assert person.joints.shape == (16, 3)
        shown = person.joints[person.labelled]
        x, y, width, height = person.box
        assert min(width, height) >= 8
        assert x >= 0
        assert y >= 0
        assert x + width <= 80
        assert y + height <= 96
        assert (shown[:, :2] >= (x - 1, y - 1)).all()
        assert (shown[:, :2] <= (x + width, y + height)).all()
        assert person.head_size is not None
        assert 2 < person.head_size < 30
        assert person.area is not None
        assert 0 < person.area < 96 * 80


def test_most_people_are_whole_and_some_reach_beyond_the_border(views: list[PersonView]) -> None:
    cut = sum(not view.person.labelled.all() for view in views)
    assert 1 <= cut <= 15


def test_poses_sizes_and_places_differ(views: list[PersonView]) -> None:
    joints = np.array([view.person.joints[:, :2] for view in views if view.person.labelled.all()])
    size = np.array([view.person.head_size for view in views if view.person.labelled.all()])
    posture = (joints - joints[:, 6:7]) / size[:, None, None]
    assert posture[:, [0, 5, 10, 15]].std(0).min() > 0.4  # ankles and wrists, in heads
    assert size.max() / size.min() > 1.5
    assert joints[:, 6].std(0).min() > 3


def test_left_and_right_limbs_are_drawn_at_their_joints_in_their_own_hue(views: list[PersonView]) -> None:
    """Halfway along a forearm or shin the colour is warm on the right and blue on the left."""
    told = []
    for image, person in views:
        for one, other in ((0, 1), (10, 11), (4, 5), (14, 15)):
            if person.labelled[[one, other]].all():
                x, y = person.joints[[one, other], :2].mean(0).round().astype(int)
                red, _, blue = image[y, x].astype(int)
                told.append((red > blue) == (MPII.side(one) == "right"))
    assert len(told) > 150
    assert np.mean(told) > 0.9  # limbs may cover one another


def test_impossible_wishes_are_refused() -> None:
    with pytest.raises(UnknownName, match="split of people"):
        MANY.samples("test")
    for wish in ({"images": {}}, {"images": {"train": 0}}, {"size": (8, 64)}, {"seed": -1}):
        with pytest.raises(DataProblem, match="people: "):
            People(**wish)
    assert MANY.problems() == ()
    assert MANY.skeleton is MPII
    assert MANY.splits == ("train", "val")

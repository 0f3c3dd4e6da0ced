"""OKS and average precision: by hand, against golden figures of pycocotools, and against itself where installed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from segtailor.core.errors import DataProblem
from segtailor.tasks.pose import COCO, MPII, Found, KeypointScores, keypoint_scores, oks
from segtailor.tasks.pose.persons import Person
from tests.tasks.pose.made_up import GOLDEN, NAMES, coco_figures, crowd_of, load

PERSON = Person(
    id="1",
    picture="a",
    box=(10, 20, 40, 100),
    joints=np.column_stack((np.arange(17) + 10, np.arange(17) * 5 + 20, np.full(17, 2))).astype(np.float32),
    area=2500,
)


def assert_same(scores: KeypointScores, expected: dict[str, float | None]) -> None:
    for name in NAMES:
        value = getattr(scores, name)
        assert value == (None if expected[name] is None else pytest.approx(expected[name], abs=1e-9)), name


def test_figures_equal_the_golden_ones() -> None:
    people, found, expected = load(GOLDEN)
    assert (
        len({value for value in expected.values() if value}) >= 8
    )  # a figure of its own for nearly everything
    assert_same(keypoint_scores(found, people, COCO), expected)


@pytest.mark.parametrize("seed", range(8))
def test_figures_equal_those_of_pycocotools(seed: int) -> None:
    pytest.importorskip(
        "pycocotools", reason="pycocotools is not installed; the golden figures are compared instead"
    )
    people, found = crowd_of(seed, pictures=8 if seed % 2 else 24)
    assert_same(keypoint_scores(found, people, COCO), coco_figures(people, found))


def test_similarity_is_the_published_formula() -> None:
    places = PERSON.joints[:, :2].astype(float)
    assert oks(places, PERSON, COCO) == 1
    places[0] += (3, 4)  # the nose, 5 pixels away
    nose = math.exp(-(5**2) / (2 * 2500 * (2 * 0.026) ** 2))
    assert oks(places, PERSON, COCO) == pytest.approx((16 + nose) / 17)
    hidden = replace(PERSON, joints=PERSON.joints * np.array([[1, 1, 0]] * 16 + [[1, 1, 1]], np.float32))
    places[16] += (0, 6)
    ankle = math.exp(-(6**2) / (2 * 2500 * (2 * 0.089) ** 2))
    assert oks(places, hidden, COCO) == pytest.approx(ankle)


def test_exact_findings_score_one_and_missed_people_cost_recall() -> None:
    other = replace(PERSON, id="2", picture="b")
    found = Found(picture="a", joints=PERSON.joints, score=0.9)
    perfect = keypoint_scores([found, replace(found, picture="b")], [PERSON, other], COCO)
    assert (perfect.ap, perfect.ar) == (pytest.approx(1), 1)
    half = keypoint_scores([found], [PERSON, other], COCO)
    assert half.ar == 0.5
    assert half.ap == pytest.approx(51 / 101)  # recalls 0.00 to 0.50 are reached


def test_a_finding_in_an_empty_picture_is_a_false_alarm() -> None:
    found = Found(picture="a", joints=PERSON.joints, score=0.5)
    alarm = replace(found, picture="nobody", score=0.9)
    assert keypoint_scores([found, alarm], [PERSON], COCO).ap == pytest.approx(0.5)


def test_sizes_without_people_have_no_figure() -> None:
    scores = keypoint_scores([], [PERSON], COCO)
    assert (scores.ap, scores.ar, scores.ap_medium) == (0, 0, 0)
    assert (scores.ap_large, scores.ar_large) == (None, None)
    assert keypoint_scores([], [], COCO).ap is None


def test_places_that_are_no_numbers_are_nowhere() -> None:
    lost = Found(picture="a", joints=np.full((17, 2), math.nan), score=0.9)
    assert keypoint_scores([lost], [PERSON], COCO).ap == 0
    with pytest.raises(DataProblem, match="has score nan"):
        keypoint_scores([replace(lost, score=math.nan)], [PERSON], COCO)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(DataProblem, match="use PCKh instead"):
        oks(PERSON.joints, PERSON, MPII)
    with pytest.raises(DataProblem, match="17 joints"):
        oks(PERSON.joints[:16], PERSON, COCO)

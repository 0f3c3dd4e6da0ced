"""The plot of quality against cost."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from random import Random

import pytest

from segtailor.report.charts import Mark, draw_front
from segtailor.report.numbers import short
from segtailor.report.svg import Axis

NAMESPACE = "{http://www.w3.org/2000/svg}"


def circles(svg: str, kind: str) -> list[tuple[float, float]]:
    root = ElementTree.fromstring(svg)
    found = [item for item in root.iter(f"{NAMESPACE}circle") if item.get("class") == kind]
    return [(float(item.get("cx", 0)), float(item.get("cy", 0))) for item in found][
        1:
    ]  # the first is the legend


def test_every_trial_is_drawn_inside_and_better_ones_higher() -> None:
    rng = Random(0)
    marks = [Mark(id=n, cost=10 ** rng.uniform(6, 9), quality=rng.random()) for n in range(40)]
    svg = draw_front(marks, title="a < b & c", unit="MACs", path=[3, 7])
    dots, chosen = circles(svg, "trial"), circles(svg, "chosen")
    assert len(dots) == 38
    assert len(chosen) == 2
    assert all(72 <= x <= 732 and 66 <= y <= 404 for x, y in dots + chosen)
    by_cost = chosen if marks[3].cost < marks[7].cost else chosen[::-1]
    assert by_cost[0][0] < by_cost[1][0]
    assert (chosen[0][1] < chosen[1][1]) == (marks[3].quality > marks[7].quality)
    assert "cost in MACs, logarithmic" in svg
    assert "mIoU in %" in svg
    assert "prefers-color-scheme: dark" in svg


@pytest.mark.parametrize(
    "marks", [[], [Mark(id=0, cost=0.0, quality=0.0)], [Mark(id=n, cost=5.0, quality=0.3) for n in range(3)]]
)
def test_few_or_equal_trials_are_no_obstacle(marks: list[Mark]) -> None:
    svg = draw_front(marks, title="t", unit="ms", path=[0, 99])
    assert len(circles(svg, "trial")) + len(circles(svg, "chosen")) == len(marks)
    assert "nan" not in svg


def test_ticks_are_round_and_inside() -> None:
    assert Axis(low=0.3, high=9.7, start=0, end=1).ticks() == [2, 4, 6, 8]
    assert Axis(low=15, high=1200, start=0, end=1, logarithmic=True).ticks() == [20, 50, 100, 200, 500, 1000]


def test_numbers_are_written_short() -> None:
    assert [short(value) for value in (0.5, 12.34, 2e6, 1.25e9)] == ["0.5", "12.34", "2M", "1.25G"]

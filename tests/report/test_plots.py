"""Plots of a page: what is drawn where."""

from __future__ import annotations

import math
import re
from random import Random

import pytest

from segtailor.report.document import Chart, DecisionStory, Front, Point, Series, TableTrust, TrustPoint
from segtailor.report.numbers import amount, duration, milliseconds, percent, significant, size
from segtailor.report.plots import (
    Box,
    best_at_each_cost,
    decision_groups,
    front_plot,
    line_chart,
    mark_box,
    name_box,
    point_names,
    strip,
    thinned,
    trust_plot,
)
from segtailor.report.svg import Plot, axis
from tests.report.sample import front, search

MARK = re.compile(r'<svg class="mark ([^"]*)" x="([-\d.]+)%" y="([-\d.]+)%"[^>]*><title>([^<]*)</title>')


def points(count: int, seed: int = 0) -> list[Point]:
    rng = Random(seed)
    return [
        Point(
            name=f"p{n}",
            group=rng.choice(["trial", "baseline", "mine"]),
            quality=rng.random(),
            cost=10 ** rng.uniform(0, 2),
        )
        for n in range(count)
    ]


def test_every_network_is_drawn_inside_with_its_figures_under_the_pointer() -> None:
    svg = front_plot(front())
    marks = MARK.findall(svg)
    assert len(marks) == len(front().points)
    assert all(0 <= float(x) <= 100 and 0 <= float(y) <= 100 for _, x, y, _ in marks)
    (winner,) = [tip for kind, _, _, tip in marks if kind == "g-winner"]
    assert "step 7 (winner)" in winner
    assert "95 % of runs within 31.2 ms" in winner
    assert "budget 33.3 ms" in svg


def test_better_is_higher_and_dearer_is_further_right() -> None:
    found = {
        tip.split(" ")[0]: (float(x), float(y))
        for _, x, y, tip in MARK.findall(front_plot(Front(points=tuple(points(40)))))
    }
    given = points(40)
    for one in given:
        for other in given:
            if one.cost < other.cost:
                assert found[one.name][0] <= found[other.name][0]
            if one.quality < other.quality:
                assert found[one.name][1] >= found[other.name][1]


def test_the_stairs_hold_exactly_the_points_that_none_beats() -> None:
    for seed in range(20):
        given = points(30, seed)
        front = best_at_each_cost(given)
        beaten = [
            one
            for one in given
            if any(o.cost <= one.cost and o.quality >= one.quality and o is not one for o in given)
        ]
        assert {point.name for point in front} == {point.name for point in given} - {
            point.name for point in beaten
        }


@pytest.mark.parametrize(
    "given",
    [
        (),
        (Point(name="a", group="g", quality=0.0, cost=0.0),),
        (Point(name="a", group="g", quality=math.nan, cost=math.inf),),
    ],
)
def test_a_front_of_little_or_no_sense_is_still_a_plot(given: tuple[Point, ...]) -> None:
    assert "<svg" in front_plot(Front(points=given, budget=None))


def test_no_name_covers_another_name_or_another_point() -> None:
    given = points(25, 3)
    frame = Plot(
        x=axis([p.cost for p in given]),
        y=axis([100 * p.quality for p in given], upwards=True),
        x_name="",
        y_name="",
    )
    placed = re.findall(
        r'x="([\d.]+)%" y="([\d.]+)%"[^>]*><text x="(-?\d+)" y="(-?\d+)" text-anchor="(\w+)">(\w+)<',
        "".join(point_names(given, frame)),
    )
    assert placed
    boxes = {
        name: name_box((float(x), float(y)), name, anchor, (int(dx), int(dy)))
        for x, y, dx, dy, anchor, name in placed
    }
    dots = {p.name: mark_box(frame.place(p.cost, 100 * p.quality)) for p in given}
    for name, box in boxes.items():
        assert not any(box.overlaps(other) for other_name, other in boxes.items() if other_name != name)
        assert not any(box.overlaps(dot) for other_name, dot in dots.items() if other_name != name)


def test_boxes_that_only_touch_do_not_overlap() -> None:
    assert not Box(0, 0, 1, 1).overlaps(Box(1, 0, 2, 1))
    assert Box(0, 0, 2, 2).overlaps(Box(1, 1, 3, 3))


def test_curves_skip_what_is_no_number_and_escape_their_names() -> None:
    series = Series(name="<b>", x=(0.0, 1.0, 2.0, 3.0), y=(1.0, math.nan, math.inf, 2.0))
    svg = line_chart(Chart(title="<i>", x_name="step", y_name="&", series=(series, series)))
    assert len(MARK.findall(svg)) == 4
    assert "<b>" not in svg
    assert "<i>" not in svg
    assert "nan" not in svg


def test_series_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="2 x and 1 y"):
        Series(name="a", x=(0.0, 1.0), y=(1.0,))


def test_prices_that_agree_lie_on_the_diagonal() -> None:
    given = tuple(
        TrustPoint(name=str(n), predicted_ms=n, measured_ms=n, disturbed=n == 2) for n in range(1, 6)
    )
    marks = MARK.findall(trust_plot(TableTrust(points=given, pearson=1, spearman=1, mape=0)))
    assert all(float(x) == pytest.approx(100 - float(y), abs=0.02) for _, x, y, _ in marks)
    assert [kind for kind, *_ in marks].count("s6 hollow") == 1


def test_bands_fill_the_strip_and_alike_decisions_share_colours() -> None:
    stories = search().decisions
    (group,) = decision_groups(stories)
    assert len(group.members) == len(stories)
    assert group.others
    assert len(group.colours) == 6
    assert all(sum(row) == pytest.approx(1) for row in group.mean.shares)
    drawn = strip(stories[0], group.colours)
    assert drawn.count("<title>") == len(stories[0].options)
    last = re.findall(r'd="M([^"]*)Z"', drawn)[-1].split("L")
    assert last[0].startswith("0.00 0.00")  # the roof of the last band is the top


def test_decisions_with_other_options_or_of_one_moment_stand_alone() -> None:
    one = DecisionStory(name="a", options=("x", "y"), at=(0.0,), shares=((0.5, 0.5),))
    two = DecisionStory(name="b", options=("x", "z"), at=(0.0, 1.0), shares=((0.5, 0.5), (0.1, 0.9)))
    assert [group.mean.name for group in decision_groups([one, two])] == ["a", "b"]
    assert strip(one, {}) == ""


def test_thinning_keeps_the_ends_and_the_order() -> None:
    found = thinned(list(range(1000)), 50)
    assert len(found) == 50
    assert found == sorted(found)
    assert (found[0], found[-1]) == (0, 999)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (percent(0.63812), "63.8 %"), (percent(None), "–"), (percent(math.nan), "–"), (percent(1, 0), "100 %"),
        (milliseconds(0.012345), "0.0123 ms"), (milliseconds(1234.5), "1234 ms"), (milliseconds(0), "0 ms"),
        (amount(3_370_000), "3.37 M"), (amount(64, "ms"), "64.0 ms"), (amount(10.4e9, "MACs"), "10.4 G MACs"),
        (amount(0), "0"), (duration(3.21), "3.2 s"), (duration(134), "2 min 14 s"), (duration(3725), "1 h 02 min"),
        (size(2_097_152), "2.00 MiB"), (size(2048), "2 KiB"), (significant(0.0283), "0.0283"),
        (significant(-12.345), "-12.3"),
    ],
)  # fmt: skip
def test_numbers_are_written_with_few_digits(written: str, expected: str) -> None:
    assert written == expected

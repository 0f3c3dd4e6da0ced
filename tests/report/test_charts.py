"""Charts in files of their own: quality against cost, prices against measurements, and the axes of all of them."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from random import Random

import pytest

from segtailor.costs.pack import Checked
from segtailor.costs.trust import judge
from segtailor.report.charts import Mark, Value, chart, draw_chart, draw_front, draw_trust
from segtailor.report.numbers import short
from segtailor.report.svg import Axis, element, text

NAMESPACE = "{http://www.w3.org/2000/svg}"


def places(svg: str, kind: str) -> list[tuple[float, float]]:
    """Return the positions of the marks of a class, in percent of the plot."""
    found = [
        item
        for item in ElementTree.fromstring(svg).iter(f"{NAMESPACE}svg")
        if item.get("class") == f"mark {kind}"
    ]
    return [(float(item.get("x", "").rstrip("%")), float(item.get("y", "").rstrip("%"))) for item in found]


def test_every_trial_is_drawn_inside_and_better_ones_higher() -> None:
    rng = Random(0)
    marks = [Mark(id=n, cost=10 ** rng.uniform(6, 9), quality=rng.random()) for n in range(40)]
    svg = draw_front(marks, title="a < b & c", unit="MACs", path=[3, 7])
    trials, chosen = places(svg, "trial"), places(svg, "chosen")
    assert len(trials) == 38
    assert len(chosen) == 2
    assert all(0 <= x <= 100 and 0 <= y <= 100 for x, y in trials + chosen)
    by_cost = chosen if marks[3].cost < marks[7].cost else chosen[::-1]
    assert by_cost[0][0] < by_cost[1][0]
    assert (chosen[0][1] < chosen[1][1]) == (marks[3].quality > marks[7].quality)
    assert "cost in MACs, logarithmic" in svg
    assert "mIoU in %" in svg
    assert "prefers-color-scheme: dark" in svg


@pytest.mark.parametrize(
    "marks", [[], [Mark(id=0, cost=0.0, quality=0.0)], [Mark(id=n, cost=5.0, quality=0.3) for n in range(3)]]
)
def test_few_or_equal_trials_can_be_drawn(marks: list[Mark]) -> None:
    svg = draw_front(marks, title="t", unit="ms", path=[0, 99])
    assert len(places(svg, "trial")) + len(places(svg, "chosen")) == len(marks)
    assert "nan" not in svg


def test_every_network_of_a_pack_is_drawn_and_prices_that_agree_lie_on_the_diagonal() -> None:
    networks = [
        Checked(fingerprint=f"{value:.0f}", predicted_ms=value, measured_ms=value, median_ms=value)
        for value in (1.0, 2.0, 3.0)
    ]
    svg = draw_trust(judge(networks), title="a <b> & c")
    marks = places(svg, "s0")
    assert len(marks) == 3
    assert all(x == pytest.approx(100 - y, abs=0.02) for x, y in marks)
    assert any("a <b> & c" in (item.text or "") for item in ElementTree.fromstring(svg).iter())


def test_bars_grow_from_zero_in_both_directions() -> None:
    svg = chart([Value("a", "x", 3.0), Value("a", "y", -1.0)], title="t", subtitle="s", unit="ms")
    bars = [
        (float(item.get("y", "").rstrip("%")), float(item.get("height", "").rstrip("%")))
        for item in ElementTree.fromstring(svg).iter(f"{NAMESPACE}rect")
        if item.get("class", "").startswith("bar")
    ]
    (top, up), (base, down) = bars
    assert top + up == pytest.approx(base, abs=0.02)
    assert up == pytest.approx(3 * down, abs=0.1)


def test_ticks_are_round_and_inside() -> None:
    assert Axis(low=0.3, high=9.7).ticks() == [2, 4, 6, 8]
    assert Axis(low=15, high=1200, logarithmic=True).ticks() == [20, 50, 100, 200, 500, 1000]


def test_numbers_are_written_short() -> None:
    assert [short(value) for value in (0.5, 12.34, 2e6, 1.25e9)] == ["0.5", "12.34", "2M", "1.25G"]


def test_content_and_attributes_of_elements_are_escaped() -> None:
    assert element("a", kind="b", stroke_width=1.5, href=None, id='"<') == (
        '<a class="b" stroke-width="1.5" id="&quot;&lt;"/>'
    )
    assert text(1, 2, "<b>").endswith(">&lt;b&gt;</text>")


@pytest.mark.parametrize("lines", [False, True])
def test_charts_are_valid_and_escape_their_text(lines: bool) -> None:
    values = [Value("a<b", str(x), x / 2, f"point {x} & more") for x in range(4)] + [Value("c", "0", 1.0)]
    text = chart(values, title="<script>", subtitle="a & b", unit="ms", lines=lines)
    root = ElementTree.fromstring(text)
    assert len(list(root.iter(f"{NAMESPACE}title"))) == 5
    assert "<script>" not in text


def test_a_flat_chart_does_not_divide_by_zero() -> None:
    root = ElementTree.fromstring(chart([Value("a", "x", 0.0)], title="t", subtitle="s", unit="ms"))
    (bar,) = [mark for mark in root.iter(f"{NAMESPACE}rect") if mark.get("class") != "page"]
    assert float(bar.get("height", "nan").rstrip("%")) == 0


def test_a_long_legend_wraps_inside_of_the_chart() -> None:
    names = [f"a series with quite a long name {number}" for number in range(8)]
    few, many = (
        draw_chart(
            {
                "title": "t", "subtitle": "s", "unit": "%", "lines": True,
                "values": [[name, "x", 1.0] for name in chosen],
            }
        )
        for chosen in (names[:2], names)
    )  # fmt: skip
    root = ElementTree.fromstring(many)
    width, height = (float(value) for value in str(root.get("viewBox")).split()[2:])
    assert height > float(str(ElementTree.fromstring(few).get("viewBox")).split()[3])
    places = [
        (float(str(part.get("x"))), float(str(part.get("y"))))
        for part in root.iter(f"{NAMESPACE}text")
        if (part.text or "") in names
    ]
    assert len(places) == len(set(places)) == len(names)
    assert all(x + 7 * len(names[0]) <= width for x, _ in places)

"""Ready networks within a budget: what fits comes first, best expected first; the rest says why not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

import segtailor
from segtailor.core.errors import MissingCost, UnknownName, UserError
from segtailor.core.plan import Plan, Shape
from segtailor.core.space import fingerprint_of, plan_of
from segtailor.costs.analytic import Macs
from segtailor.spaces import on_lite0, published
from segtailor.tailoring.selecting import expected_qualities, ready_networks

SIZE = (256, 512)
LIMIT = 2e9


def test_fitting_networks_come_first_and_best_expected_first() -> None:
    rows = ready_networks(Macs(), LIMIT, image=SIZE, classes=11)
    fitting = [row for row in rows if row.fits]
    others = [row for row in rows if not row.fits]
    assert rows == (*fitting, *others)
    assert fitting
    assert others
    assert [row.expected for row in fitting] == sorted((row.expected for row in fitting), reverse=True)
    assert [row.price for row in others] == sorted(row.price for row in others if row.price is not None)
    for row in rows:
        deployed = plan_of(published(row.name), Shape(3, *SIZE), 11).deployed()
        assert row.price == deployed.macs()
        assert row.fits == (row.price <= LIMIT)


def test_a_network_that_is_too_expensive_says_so() -> None:
    (row,) = ready_networks(Macs(), LIMIT, image=(1024, 2048), classes=19, names=["bisenetv2"])
    assert row.reason == "costs 9.841e+10 MACs at 1024x2048, the limit is 2e+09 MACs"


def test_every_network_is_there_once() -> None:
    rows = ready_networks(Macs(), LIMIT, image=SIZE, classes=19)
    every = {*segtailor.architectures(), *segtailor.baselines(), *on_lite0()}
    marks = [fingerprint_of(published(row.name)) for row in rows]
    assert len(set(marks)) == len(marks)
    assert set(marks) == {fingerprint_of(published(name)) for name in every}
    assert {row.name for row in rows} >= {*segtailor.baselines(), "lpsnet-s", "lpsnet-m", "lpsnet-l"}


def test_published_quality_is_taken_and_the_rest_grows_with_size() -> None:
    expected = expected_qualities()
    assert expected["pidnet-s"] == (pytest.approx(0.788), "published")
    assert expected["fasterseg-student"] == (pytest.approx(0.731), "published")
    inferred = [name for name, (_, evidence) in expected.items() if evidence == "inferred"]
    assert "lpsnet-step0" in inferred
    assert "fasterseg-teacher" in inferred
    by_size = sorted(inferred, key=lambda name: segtailor.count(name).macs)
    assert by_size == sorted(inferred, key=lambda name: expected[name][0])


def test_a_second_name_has_the_same_quality() -> None:
    one, two = (
        ready_networks(Macs(), LIMIT, image=SIZE, classes=19, names=[name])[0]
        for name in ("lpsnet-s", "lpsnet-step7")
    )
    assert (one.expected, one.price) == (two.expected, two.price)


@dataclass(frozen=True, kw_only=True)
class PartialTable:
    """A cost that knows small networks only, as a table of another family would."""

    unit: ClassVar[str] = "ms"

    def of(self, plan: Plan) -> float:
        """Return the number of layers, or raise as a table does."""
        if len(plan.calls) > 100:
            raise MissingCost("no entry for norm; calibrate it")
        return len(plan.calls)


def test_what_has_no_price_comes_last_with_the_reason() -> None:
    rows = ready_networks(
        PartialTable(), 60, image=SIZE, classes=19, names=["pidnet-s", "fast-scnn", "bisenetv2"]
    )
    assert [(row.name, row.price) for row in rows] == [
        ("fast-scnn", 30),
        ("bisenetv2", 83),
        ("pidnet-s", None),
    ]
    assert rows[-1].reason == "has no price here: no entry for norm; calibrate it"


@pytest.mark.parametrize("limit", [0, -1, float("nan")])
def test_a_limit_that_is_none_is_refused(limit: float) -> None:
    with pytest.raises(UserError, match="no budget"):
        ready_networks(Macs(), limit, image=SIZE, classes=19)


def test_unknown_names_are_told() -> None:
    with pytest.raises(UnknownName, match="'pidnet-s'"):
        ready_networks(Macs(), LIMIT, image=SIZE, classes=19, names=["pidnet"])


def test_plans_are_priced_at_the_given_size() -> None:
    small, large = (
        ready_networks(Macs(), 1e12, image=image, classes=19, names=["fast-scnn"])[0].price
        for image in (SIZE, (1024, 2048))
    )
    assert small is not None
    assert large is not None
    assert 15 < large / small < 17

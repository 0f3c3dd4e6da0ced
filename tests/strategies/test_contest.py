"""Contests of strategies and ablations of evaluators, on the planted problem."""

from __future__ import annotations

from typing import Any

import pytest
from segtailor.strategies.ranks import spearman

from segtailor.core.errors import UnknownName
from segtailor.core.strategy import SearchProblem
from segtailor.report.charts import draw_chart
from segtailor.strategies import Ablation, Contender, Contest, Variant
from tests.strategies.planted import problem

CONTEST = Contest(
    contenders=(
        Contender(name="bred", kind="evolution", settings={"trials": 12, "population": 4}),
        Contender(name="chance", kind="random", settings={"trials": 12}),
    )
)


def outcome(strategy: Any, **settings: Any) -> dict[str, Any]:
    job = strategy.job(problem(**settings))
    for _ in job.steps():
        pass
    return dict(job.result())


def test_contenders_search_one_after_the_other_and_are_compared() -> None:
    found = outcome(CONTEST)
    names = [item["origin"]["contender"] for item in found["trials"]]
    assert names == ["bred"] * 12 + ["chance"] * 12
    bred, chance = found["study"]
    assert (bred["entrant"], len(chance["qualities"])) == ("bred", 12)
    assert found["quality"] == max(bred["quality"], chance["quality"])
    assert chance["mean"] == pytest.approx(sum(chance["qualities"]) / 12)
    assert [point[:2] for point in found["chart"]["values"][:2]] == [["bred", "Q1"], ["bred", "Q2"]]
    assert 'class="line ' in draw_chart(found["chart"])


def test_a_contest_of_nobody_or_strangers_is_refused() -> None:
    with pytest.raises(SearchProblem, match="needs contenders"):
        Contest().check(problem())
    with pytest.raises(UnknownName, match="no strategy is called 'luck'"):
        Contest(contenders=(Contender(name="a", kind="luck"),)).check(problem())


ABLATION = Ablation(
    architectures=5,
    variants=(
        Variant(name="exact"),
        Variant(name="noisy", changes={"noise": 0.3}),
        Variant(name="taught", needs="teacher.path"),
    ),
)


def test_every_variant_judges_the_same_architectures_with_the_same_seeds() -> None:
    found = outcome(ABLATION)
    by = {
        name: [item for item in found["trials"] if item["origin"]["variant"] == name]
        for name in ("exact", "noisy")
    }
    assert len(found["trials"]) == 10  # the third needs what is not there
    for key in ("fingerprint", "seed"):
        assert [item[key] for item in by["exact"]] == [item[key] for item in by["noisy"]]
    assert [row["entrant"] for row in found["study"]] == ["exact", "noisy"]
    exact = [item["result"]["quality"] for item in by["exact"]]
    noisy = [item["result"]["quality"] for item in by["noisy"]]
    assert exact != noisy
    assert found["ranks"]["exact quality / noisy quality"] == pytest.approx(spearman(exact, noisy))
    assert 'class="bar ' in draw_chart(found["chart"])


def test_a_variant_joins_where_its_setting_is_given() -> None:
    found = outcome(ABLATION, teacher={"path": "somewhere"})
    assert [row["entrant"] for row in found["study"]] == ["exact", "noisy", "taught"]


def test_an_ablation_of_nothing_is_refused() -> None:
    with pytest.raises(SearchProblem, match="needs variants"):
        Ablation().check(problem())


def test_rank_correlation_knows_order_ties_and_nothing() -> None:
    assert spearman([1, 2, 3], [10, 20, 90]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert spearman([1, 1, 2], [1, 2, 3]) == pytest.approx(0.8660254)
    assert spearman([1], [2]) is None
    assert spearman([1, 1], [2, 3]) is None

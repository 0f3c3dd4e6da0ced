"""Strategies that compare: contests, ablations and studies, on the planted problem."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from benchmarks.search_strategies import Ablation, Contender, Contest, Entrant, Study, Variant

from benchmarks import search_strategies
from segtailor.core.codec import from_json, to_json
from segtailor.core.errors import InvalidArchitecture, UserError
from segtailor.core.registry import STRATEGIES
from segtailor.core.statistics import spearman
from segtailor.core.strategy import SearchProblem
from segtailor.report.charts import draw_chart
from segtailor.strategies import Evolution, RandomSearch
from segtailor.strategies.gradient_settings import Gradient
from tests.strategies.planted import PlantedArchitecture, problem

CONTEST = Contest(
    contenders=(
        Contender(name="bred", strategy=Evolution(trials=12, population=4)),
        Contender(name="chance", strategy=RandomSearch(trials=12)),
    )
)
ABLATION = Ablation(
    architectures=5,
    variants=(
        Variant(name="exact"),
        Variant(name="noisy", changes={"noise": 0.3}),
        Variant(name="taught", needs="teacher.path"),
    ),
)


def planted(*picks: int) -> PlantedArchitecture:
    return PlantedArchitecture(picks=picks)


ONE, TWO = planted(1, 0, 0, 0, 0, 0), planted(0, 1, 0, 0, 0, 0)


def outcome(strategy: Any, **settings: Any) -> dict[str, Any]:
    job = strategy.job(problem(**settings))
    for _ in job.steps():
        pass
    return dict(job.result())


def entrants(**architectures: PlantedArchitecture) -> Study:
    return Study(
        entrants=tuple(Entrant(name=name, architecture=arch) for name, arch in architectures.items())
    )


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


def test_a_contest_without_contenders_or_of_other_strategies_is_refused() -> None:
    with pytest.raises(SearchProblem, match="needs contenders"):
        Contest().check(problem())
    luck = {"contenders": [{"name": "a", "strategy": {"kind": "luck"}}]}
    with pytest.raises(UserError, match="no strategy is called 'luck'"):
        from_json(Contest, luck, what="contest")
    gradient: Any = object.__new__(Gradient)
    with pytest.raises(SearchProblem, match="strategy 'gradient' makes no trials"):
        Contest(contenders=(Contender(name="a", strategy=gradient),)).check(problem())


def test_every_variant_judges_the_same_architectures_with_the_same_seeds() -> None:
    found = outcome(ABLATION)
    by = {
        name: [item for item in found["trials"] if item["origin"]["variant"] == name]
        for name in ("exact", "noisy")
    }
    assert len(found["trials"]) == 10  # the third needs a setting that is not there
    for key in ("fingerprint", "seed"):
        assert [item[key] for item in by["exact"]] == [item[key] for item in by["noisy"]]
    assert [row["entrant"] for row in found["study"]] == ["exact", "noisy"]
    exact = [item["result"]["quality"] for item in by["exact"]]
    noisy = [item["result"]["quality"] for item in by["noisy"]]
    assert exact != noisy
    assert found["ranks"]["exact quality / noisy quality"] == pytest.approx(spearman(exact, noisy))
    assert 'class="bar ' in draw_chart(found["chart"])


def test_a_variant_joins_if_its_setting_is_given() -> None:
    found = outcome(ABLATION, teacher={"path": "somewhere"})
    assert [row["entrant"] for row in found["study"]] == ["exact", "noisy", "taught"]


def test_an_ablation_without_variants_is_refused() -> None:
    with pytest.raises(SearchProblem, match="needs variants"):
        Ablation().check(problem())


def test_entrants_are_judged_as_they_are_and_named_in_the_table() -> None:
    found = outcome(entrants(a=ONE, b=TWO))
    assert [(row["entrant"], row["trial"]) for row in found["study"]] == [("a", 0), ("b", 1)]
    assert all(row["quality"] > 0 for row in found["study"])
    assert found["chart"]["values"] == [["quality", row["entrant"], row["quality"]] for row in found["study"]]


def test_scaled_entrants_come_closest_to_the_cost_of_the_match() -> None:
    scaled = tuple(
        Entrant(name=name, architecture=base, scaled="picks") for name, base in (("a", ONE), ("b", TWO))
    )
    found = outcome(Study(entrants=scaled, match=planted(5, 0, 0, 0, 0, 0)))
    price = found["study"][0]["cost"]
    assert found["study"][0]["factor"] == 5
    unit = outcome(entrants(b=TWO))["study"][0]["cost"] - 6
    assert abs(found["study"][1]["cost"] - price) <= unit / 2


def test_entrants_above_the_budget_are_left_out_and_none_within_is_an_error() -> None:
    study = entrants(a=ONE, large=planted(9, 9, 9, 9, 9, 9))
    limit = outcome(study)["study"][0]["cost"]
    assert [row["entrant"] for row in outcome(study, limit=limit)["study"]] == ["a"]
    with pytest.raises(SearchProblem, match="no architecture within 1 ch: the cheapest entrant costs"):
        outcome(study, limit=1)


def test_studies_that_cannot_work_are_refused() -> None:
    with pytest.raises(SearchProblem, match="needs entrants"):
        Study().check(problem())
    with pytest.raises(InvalidArchitecture, match="family is None"):
        from_json(Study, {"entrants": [{"name": "a", "architecture": {"format": 1}}]}, what="study")
    wrong = Entrant(name="a", architecture=ONE, scaled="width")
    with pytest.raises(SearchProblem, match="'width' is no list"):
        outcome(Study(entrants=(wrong,), match=ONE))
    assert outcome(Study(entrants=(replace(wrong, scaled=None),), match=ONE))["study"]


@pytest.mark.parametrize(
    "strategy", [CONTEST, ABLATION, entrants(a=ONE, b=TWO)], ids=lambda item: type(item).__name__
)
def test_a_comparison_survives_its_file(strategy: Any) -> None:
    search_strategies.register()
    search_strategies.register()  # twice does no harm
    assert STRATEGIES.get(STRATEGIES.name_of(type(strategy))) is type(strategy)
    assert from_json(type(strategy), to_json(strategy), what="strategy") == strategy

"""Studies: given architectures side by side, at their own or at equal cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from segtailor.core.errors import InvalidArchitecture
from segtailor.core.space import architecture_document
from segtailor.core.strategy import SearchProblem
from segtailor.strategies import Entrant, Study
from tests.strategies.planted import PlantedArchitecture, problem


def document(*picks: int) -> dict[str, Any]:
    return architecture_document(PlantedArchitecture(picks=picks))


def finish(study: Study, **settings: Any) -> dict[str, Any]:
    job: Any = study.job(problem(**settings))
    for _ in job.steps():
        pass
    return dict(job.result())


ONE, TWO = document(1, 0, 0, 0, 0, 0), document(0, 1, 0, 0, 0, 0)


def test_entrants_are_judged_as_they_are_and_named_in_the_table() -> None:
    found = finish(Study(entrants=(Entrant(name="a", architecture=ONE), Entrant(name="b", architecture=TWO))))
    assert [(row["entrant"], row["trial"]) for row in found["study"]] == [("a", 0), ("b", 1)]
    assert all(row["quality"] > 0 for row in found["study"])
    assert found["chart"]["values"] == [["quality", row["entrant"], row["quality"]] for row in found["study"]]


def test_scaled_entrants_come_closest_to_the_cost_of_the_match() -> None:
    entrants = tuple(
        Entrant(name=name, architecture=base, scaled="picks") for name, base in (("a", ONE), ("b", TWO))
    )
    match = document(5, 0, 0, 0, 0, 0)
    found = finish(Study(entrants=entrants, match=match))
    price = found["study"][0]["cost"]
    assert found["study"][0]["factor"] == 5
    unit = finish(Study(entrants=(Entrant(name="b", architecture=TWO),)))["study"][0]["cost"] - 6
    assert abs(found["study"][1]["cost"] - price) <= unit / 2


def test_entrants_beyond_the_budget_are_left_out_and_none_within_is_an_error() -> None:
    large = document(9, 9, 9, 9, 9, 9)
    study = Study(entrants=(Entrant(name="a", architecture=ONE), Entrant(name="large", architecture=large)))
    limit = finish(study)["study"][0]["cost"]
    assert [row["entrant"] for row in finish(study, limit=limit)["study"]] == ["a"]
    with pytest.raises(SearchProblem, match="no architecture within 1 ch: the cheapest entrant costs"):
        finish(study, limit=1)


def test_studies_that_cannot_work_are_refused() -> None:
    with pytest.raises(SearchProblem, match="needs entrants"):
        Study().check(problem())
    with pytest.raises(InvalidArchitecture, match="entrant 'a'"):
        Study(entrants=(Entrant(name="a", architecture={"format": 1}),)).check(problem())
    wrong = Entrant(name="a", architecture=ONE, scaled="width")
    with pytest.raises(SearchProblem, match="'width' is no list"):
        finish(Study(entrants=(wrong,), match=ONE))
    assert finish(Study(entrants=(replace(wrong, scaled=None),), match=ONE))["study"]

"""Every published system can be asked for, with its effort and the budget set in its own way."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from segtailor.core.errors import UserError
from segtailor.core.registry import SPACES
from segtailor.recipes.search import SearchRecipe
from segtailor.runs import Context
from segtailor.tailoring.choosing import SYSTEMS
from segtailor.tailoring.context import Context
from segtailor.tailoring.searches import by_gradients, search_recipe
from tests.tailoring.test_job import recipe

DATA = "synthetic:size=64x96,train=8,val=2,seed=0"
LIMIT = 123_456_789.0


def asked(folder: Path, system: str, *, pace: float = 1.0, **effort: Any) -> SearchRecipe:
    plan = recipe()
    plan = replace(
        plan,
        data=DATA,
        system=system,
        image=(64, 96),
        crop=(32, 64),
        batch=4,
        search_limit_macs=LIMIT,
        effort=replace(plan.effort, supernet_steps=20, candidate_steps=12, **effort),
    )
    around = Context(cache=folder / "cache", device="cpu")
    return search_recipe(
        Context(recipe=plan, folder=folder, around=around, pace=pace), pack=None, priced=True
    )


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_searches_at_the_size_and_within_the_budget_asked_for(
    tmp_path: Path, system: str
) -> None:
    found = asked(tmp_path, system)
    assert (found.name, found.image) == (system, (64, 96))
    assert (found.cost.unit, found.limit) == ("MACs", LIMIT)
    assert found.space.build(SPACES).decisions
    if found.objective is not None:
        assert found.objective.settings["limit"] == LIMIT


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("pace", [0.5, 2.0])
def test_the_length_of_every_search_follows_the_pace(tmp_path: Path, system: str, pace: float) -> None:
    planned, paced = (lengths(asked(tmp_path, system, pace=one)) for one in (1.0, pace))
    assert set(planned) == set(paced)
    for part, steps in planned.items():
        assert paced[part] == pytest.approx(pace * steps, abs=1), part


def lengths(found: SearchRecipe) -> dict[str, int]:
    """Steps of everything that a search trains."""
    settings = found.strategy.settings
    if by_gradients(found):
        ahead = settings["pretraining"]
        return {"search": settings["fit"]["steps"], **({"ahead": ahead["fit"]["steps"]} if ahead else {})}
    if found.evaluator == "staged" and found.staged is not None and found.staged.stage2 is not None:
        return {"first": found.staged.stage1.total(1), "second": found.staged.stage2.total(1)}
    return {"training": found.training.fit.total(1)}


@pytest.mark.parametrize(("pace", "drawn"), [(0.5, 1), (1.0, 2), (100.0, 20)])
def test_short_searches_judge_few_networks_in_the_end(tmp_path: Path, pace: float, drawn: int) -> None:
    found = asked(tmp_path, "squeezenas", pace=pace)
    assert found.strategy.settings["choice"]["samples"] == drawn


def test_few_candidates_evolve_and_many_expand(tmp_path: Path) -> None:
    few, many = (asked(tmp_path, "lpsnet", candidates=count) for count in (12, 60))
    assert (few.strategy.kind, few.strategy.settings["trials"]) == ("evolution", 12)
    assert (many.strategy.kind, many.strategy.settings["steps"]) == ("expansion", 6)


def test_a_controller_draws_as_many_networks_as_there_are_candidates(tmp_path: Path) -> None:
    found = asked(tmp_path, "auxcells", candidates=7)
    assert (found.strategy.kind, found.strategy.settings["trials"]) == ("controller", 7)


def test_a_system_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="lpsnet"):
        asked(tmp_path, "lpsnets")

"""Which ready networks are compared with: what is known to keep the budget is not measured again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from segtailor.api.networks import count, published, resolve
from segtailor.api.training import Surroundings
from segtailor.core.space import architecture_document, family_of
from segtailor.tailoring.context import Context
from segtailor.tailoring.finding import KIN, OTHERS, _worth_a_look, ready
from tests.tailoring.test_job import recipe

WINNER = "lpsnet-step1"
IMAGE = (32, 64)


def context(folder: Path, *, budget_ms: float, **known: float) -> Context:
    """A winner that takes a millisecond, and ready networks of known latency."""
    file = folder / "winner.json"
    file.write_text(json.dumps(architecture_document(published(WINNER))))
    outcomes = {
        "choose": {"architecture": str(file), "median_ms": 1.0, "p95_ms": 1.1},
        "fastest": {
            "networks": [
                {"network": name.replace("_", "-"), "median_ms": p95, "p95_ms": p95, "making_seconds": 1.0}
                for name, p95 in known.items()
            ]
        },
    }
    plan = recipe()
    request = replace(plan.request, target="cpu/eager/fp32?threads=1", budget_ms=budget_ms)
    plan = replace(plan, request=request, image=IMAGE, timing_seconds=0.01)
    around = Surroundings(cache=folder / "cache", device="cpu")
    return Context(recipe=plan, folder=folder, around=around, outcomes=outcomes)


@pytest.mark.parametrize("budget_ms", [0.5, 2.0, 10.0])
def test_only_networks_that_may_keep_the_budget_are_looked_at(tmp_path: Path, budget_ms: float) -> None:
    likely = max(1.0, budget_ms) * count(WINNER, image=IMAGE).macs
    for name in _worth_a_look(context(tmp_path, budget_ms=budget_ms)):
        kin = family_of(resolve(name)) == family_of(published(WINNER))
        assert count(name, image=IMAGE, classes=11).macs <= 1.05 * (KIN if kin else OTHERS) * likely


def test_the_best_expected_of_the_networks_known_to_keep_the_budget_is_taken_unmeasured(
    tmp_path: Path,
) -> None:
    place = context(tmp_path, budget_ms=1.0, lpsnet_step0=0.3, lpsnet_step1=0.9)
    place = replace(place, recipe=replace(place.recipe, effort=replace(place.recipe.effort, baselines=1)))
    assert ready(place)["networks"] == [place.outcomes["fastest"]["networks"][1]]
    tight = context(tmp_path, budget_ms=0.5, lpsnet_step0=0.3, lpsnet_step1=0.9)
    assert ready(tight)["networks"][0] == tight.outcomes["fastest"]["networks"][0]


def test_none_is_taken_where_none_keeps_the_budget_or_none_is_wanted(tmp_path: Path) -> None:
    tight = context(tmp_path, budget_ms=1e-3, lpsnet_step0=0.3, lpsnet_step1=0.9)
    assert ready(tight) == {"networks": []}
    loose = context(tmp_path, budget_ms=1.0, lpsnet_step0=0.3)
    none = replace(loose.recipe, effort=replace(loose.recipe.effort, baselines=0))
    assert ready(replace(loose, recipe=none)) == {"networks": []}

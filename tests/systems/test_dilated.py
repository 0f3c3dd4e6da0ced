"""The search of our own, end to end at the smallest scale."""

from __future__ import annotations

from pathlib import Path

import pytest

from segtailor.core.codec import read_json
from segtailor.core.space import parse_architecture
from segtailor.runs import Context
from segtailor.spaces.dilated_residual import DilatedResidual, DilatedResidualArchitecture
from segtailor.strategies import Evolution
from segtailor.strategies.evaluators.train import TrainEvaluator
from segtailor.systems.system import Scale
from segtailor.verbs.search import SearchChoices, search, search_recipe

DATA = "synthetic:size=32x64,train=8,val=2"


def test_both_scales_evolve_networks_of_the_space(tmp_path: Path) -> None:
    context = Context(cache=tmp_path, device="cpu")
    scales: tuple[Scale, ...] = ("small", "paper")
    for scale in scales:
        found = search_recipe("dilated", DATA, SearchChoices(scale=scale), context=context)
        assert isinstance(found.space, DilatedResidual)
        assert isinstance(found.strategy, Evolution)
        assert isinstance(found.evaluator, TrainEvaluator)
        assert (found.image, found.evaluator.augment.crop) == (
            (32, 64),
            (32, 64),
        )  # both scales follow the data


@pytest.mark.slow
def test_a_tiny_search_ends_within_its_budget(tmp_path: Path) -> None:
    context = Context(cache=tmp_path / "cache", device="cpu")
    choices = SearchChoices(trials=3, budget="20MMACs")
    changes = ["evaluator.fit.steps=2", "evaluator.fit.batch=2", "strategy.population=2"]
    recipe = search_recipe("dilated", DATA, choices, changes=changes, context=context)
    result = search(recipe, tmp_path / "run", context=context)
    document = read_json(Path(str(result["architecture"])), what="architecture")
    assert isinstance(parse_architecture(document), DilatedResidualArchitecture)
    assert float(str(result["cost"])) <= 20e6

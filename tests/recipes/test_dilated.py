"""The search of our own, end to end at the smallest scale."""

from __future__ import annotations

from pathlib import Path

import pytest

from segtailor.core.codec import read_json
from segtailor.core.space import parse_architecture
from segtailor.runs import Context
from segtailor.spaces.dilated_residual import DilatedResidualArchitecture
from segtailor.verbs.search import SearchChoices, search, search_recipe

DATA = "synthetic:size=32x64,train=8,val=2"


def test_both_scales_evolve_networks_of_the_space(tmp_path: Path) -> None:
    around = Context(cache=tmp_path, device="cpu")
    for scale in ("small", "paper"):
        found = search_recipe("dilated", DATA, SearchChoices(scale=scale), surroundings=around)
        assert (found.space.kind, found.strategy.kind) == ("dilated_residual", "evolution")


@pytest.mark.slow
def test_a_tiny_search_ends_within_its_budget(tmp_path: Path) -> None:
    around = Context(cache=tmp_path / "cache", device="cpu")
    choices = SearchChoices(trials=3, budget="20MMACs")
    changes = ["training.fit.steps=2", "training.fit.batch=2", "strategy.settings.population=2"]
    recipe = search_recipe("dilated", DATA, choices, changes=changes, surroundings=around)
    result = search(recipe, tmp_path / "run", surroundings=around)
    document = read_json(Path(str(result["architecture"])), what="architecture")
    assert isinstance(parse_architecture(document), DilatedResidualArchitecture)
    assert float(result["cost"]) <= 20e6

"""The search over parts of a pre-trained encoder: candidates begin from its weights, with any executor."""

from __future__ import annotations

from pathlib import Path

import pytest

from segtailor.core.errors import Unsupported
from segtailor.runs import Context
from segtailor.spaces.elastic import Elastic
from segtailor.strategies import Evolution
from segtailor.verbs.search import SearchChoices, search, search_recipe

DATA = "synthetic:size=32x64,train=8,val=2"
CHANGES = ["evaluator.fit.steps=1", "evaluator.fit.batch=2", "strategy.population=2"]


def test_candidates_start_from_imagenet_unless_told_otherwise(tmp_path: Path) -> None:
    context = Context(cache=tmp_path, device="cpu")
    found = search_recipe("elastic", DATA, context=context)
    assert isinstance(found.space, Elastic)
    assert isinstance(found.strategy, Evolution)
    assert found.start == "imagenet"
    assert search_recipe("elastic", DATA, SearchChoices(start="none"), context=context).start == "none"
    assert search_recipe("lpsnet", DATA, context=context).start == "none"  # nothing of it fits
    with pytest.raises(Unsupported, match="supernet"):
        search_recipe("autortnet", DATA, SearchChoices(start="imagenet"), context=context)


def test_a_tiny_search_says_where_its_weights_came_from(tmp_path: Path) -> None:
    context = Context(cache=tmp_path / "cache", device="cpu")
    qualities = {}
    for start in ("imagenet", "none"):
        recipe = search_recipe(
            "elastic", DATA, SearchChoices(trials=2, start=start), changes=CHANGES, context=context
        )
        result = search(recipe, tmp_path / start, context=context)
        assert isinstance(result["start"], dict)
        assert result["start"]["name"] == start
        trials = result["trials"]
        assert isinstance(trials, list)
        qualities[start] = [trial["result"]["quality"] for trial in trials]  # type: ignore[index, call-overload]
    assert (
        qualities["imagenet"] != qualities["none"]
    )  # other weights, and no result of the other in the cache

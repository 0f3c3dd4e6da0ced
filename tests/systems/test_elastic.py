"""The search over parts of a pre-trained encoder: candidates begin from its weights, with any executor."""

from __future__ import annotations

from pathlib import Path

import pytest

from segtailor.core.errors import Unsupported
from segtailor.runs import Context
from segtailor.spaces.elastic import Elastic
from segtailor.strategies.one_shot import OneShot
from segtailor.verbs.search import SearchChoices, search, search_recipe

DATA = "synthetic:size=32x64,train=8,val=2"
CHANGES = [
    "strategy.fit.steps=1", "strategy.fit.batch=2", "strategy.population=2", "strategy.choice.recalibrate=1",
    "strategy.choice.images=2",
]  # fmt: skip
TRAINED = ["evaluator.fit.steps=1", "evaluator.fit.batch=2", "strategy.population=2"]


def test_candidates_start_from_imagenet_unless_told_otherwise(tmp_path: Path) -> None:
    context = Context(cache=tmp_path, device="cpu")
    found = search_recipe("elastic", DATA, context=context)
    assert isinstance(found.space, Elastic)
    assert isinstance(found.strategy, OneShot)
    assert found.start == "imagenet"
    assert search_recipe("elastic", DATA, SearchChoices(start="none"), context=context).start == "none"
    assert search_recipe("lpsnet", DATA, context=context).start == "none"  # nothing of it fits
    with pytest.raises(Unsupported, match="supernet"):
        search_recipe("autortnet", DATA, SearchChoices(start="imagenet"), context=context)


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "changes"), [(None, CHANGES), ("evolution", TRAINED)])
def test_a_tiny_search_says_where_its_weights_came_from(
    tmp_path: Path, strategy: str | None, changes: list[str]
) -> None:
    context = Context(cache=tmp_path / "cache", device="cpu")
    qualities = {}
    for start in ("imagenet", "none"):
        choices = SearchChoices(trials=2, start=start, strategy=strategy)
        recipe = search_recipe("elastic", DATA, choices, changes=changes, context=context)
        result = search(recipe, tmp_path / start, context=context)
        assert isinstance(result["start"], dict)
        assert result["start"]["name"] == start
        trials = result["trials"]
        assert isinstance(trials, list)
        qualities[start] = [trial["result"]["quality"] for trial in trials]  # type: ignore[index, call-overload]
    assert (
        qualities["imagenet"] != qualities["none"]
    )  # other weights, and no result of the other in the cache

"""Table 4 of AutoRTNet: one search for each row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.autortnet_robustness import PAPER_STARTS, STUDIES

from segtailor.runs import Context
from segtailor.systems import autortnet
from segtailor.verbs.search import SearchChoices

DATA = "synthetic:size=64x128,train=8,val=2,seed=0"


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_every_row_starts_elsewhere(scale: Any) -> None:
    base = autortnet.PAPER if scale == "paper" else autortnet.SMALL
    recipes = [study(base, scale) for study in STUDIES.studies.values()]
    starts = {(recipe.space.depths, recipe.seed) for recipe in recipes}  # type: ignore[attr-defined]
    assert len(starts) == len(PAPER_STARTS) == len(recipes)


def test_a_seed_that_is_given_is_used(tmp_path: Path) -> None:
    context = Context(cache=tmp_path)
    own, other = (STUDIES.recipe("3", DATA, SearchChoices(seed=seed), context=context) for seed in (None, 7))
    assert (own.seed, other.seed) == (1, 7)


@pytest.mark.slow
def test_a_row_is_searched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["1", "--data", DATA, "--out", str(tmp_path / "run"), "--cache", str(tmp_path), "--device", "cpu"]
    settings = ["fit.steps=2", "fit.batch=2", "choice.samples=0", "choice.recalibrate=1", "choice.images=2"]
    STUDIES.main(None, [*words, "--json", "--set", *(f"strategy.{setting}" for setting in settings)])
    assert json.loads(capsys.readouterr().out)["fingerprint"]

"""AutoRTNet's depths by gamma: the recipes of both ways, the slopes, and the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.autortnet_depths import GAMMAS, Setting, recipe_of, slopes, table

from segtailor.runs import Context
from segtailor.strategies.gradient import GradientSearch

SETTING = Setting(
    data="synthetic:size=32x64,train=10,val=2",
    scale="small",
    device="cpu",
    steps=4,
    batch=2,
    image=None,
    crop=(32, 64),
    depths=(1, 2, 2),
    warmup=0.5,
    logits_lr=0.02,
    pack=None,
)


def recipe(tmp_path: Path, frozen: str = "uniform") -> Any:
    return recipe_of(SETTING, gamma=0.05, frozen=frozen, seed=1, context=Context(cache=tmp_path))


def test_a_cell_of_the_table_is_the_search_of_the_system_with_its_own_weight(tmp_path: Path) -> None:
    assert GAMMAS == (0, 0.001, 0.01, 0.05, 0.1)  # Figure 6
    for frozen in ("drawn", "uniform"):
        strategy = recipe(tmp_path, frozen).strategy
        assert (strategy.cost.weight, strategy.cost.form, strategy.fit.steps) == (0.05, "log", 4)
        assert strategy.logits.lr == 0.02
        assert (strategy.groups["depth"].frozen, strategy.groups["depth"].warmup) == (frozen, 0.5)


def test_slopes_say_what_the_data_and_the_cost_ask_for(tmp_path: Path) -> None:
    search = recipe(tmp_path).job(Context(cache=tmp_path, device="cpu")).search
    assert isinstance(search, GradientSearch)
    found = slopes(search, gamma=0.05, batches=2)
    assert found.keys() == {"depth1", "depth2", "depth3"}
    assert found["depth2"]["cost"] > 0  # deeper always costs more
    assert found["depth1"]["cost"] == pytest.approx(0)  # it has no choice
    without = slopes(search, gamma=0.0, batches=2)
    assert without["depth2"]["cost"] == 0


def test_the_table_has_a_line_for_each_weight_and_both_ways() -> None:
    row: dict[str, Any] = {"depths": [2, 4, 6], "course": [[3, 5, 5], [2.1, 3.9, 5.8]], "slopes": None}
    slopes_of = {"depth1": {"data": 0.1, "spread": 0.2, "cost": 0.3}}
    told = table(
        {"drawn_0.01_0": {"search": row}, "uniform_0.01_0": {"search": {**row, "slopes": slopes_of}}}
    )
    assert "| 0.01 | {2,4,6} (2.1 3.9 5.8) | {2,4,6} (2.1 3.9 5.8) |" in told
    assert "| uniform_0.01_0 | depth1 | +0.10000 | +0.20000 | +0.30000 |" in told

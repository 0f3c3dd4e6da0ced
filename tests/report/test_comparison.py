"""Runs side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from segtailor.core.errors import UserError
from segtailor.report.comparison import compare, short_names
from segtailor.report.html import render_comparison
from tests.report.folders import calibrate_run, search_run, tailor_run, train_run
from tests.report.test_html import Page


def test_figures_settings_and_curves_stand_side_by_side(tmp_path: Path) -> None:
    runs = [train_run(tmp_path / "a", seed=0, miou=0.3), train_run(tmp_path / "b", seed=1, miou=0.6)]
    found = compare(runs)
    best = found.best()
    assert best is not None
    assert (best.name, best.quality, best.seed) == ("b", 0.6, "1")
    assert [(setting.name, setting.values) for setting in found.settings("differs")] == [
        ("fit.seed", ("0", "1"))
    ]
    assert "fit.lr" in [setting.name for setting in found.settings("same")]
    charts = {chart.title: chart for chart in found.charts()}
    assert [series.name for series in charts["Loss"].series] == ["a", "b"]
    page = Page(render_comparison(found))
    assert [section["id"] for section in page.named("section")] == ["runs", "settings", "curves"]
    assert page.open == []


def test_fronts_are_laid_over_one_another_by_run(tmp_path: Path) -> None:
    runs = [search_run(tmp_path / "a", seed=0, limit=1e9), search_run(tmp_path / "b", seed=1, limit=1e9)]
    (front,) = compare(runs).fronts()
    assert {point.group for point in front.points} == {"a", "b"}
    assert front.budget == 1e9
    assert len({point.name for point in front.points}) == len(front.points)


def test_runs_of_different_kinds_and_states_can_be_compared(tmp_path: Path) -> None:
    runs = [
        train_run(tmp_path / "train", finished=False),
        search_run(tmp_path / "search"),
        calibrate_run(tmp_path / "pack"),
        tailor_run(tmp_path / "tailor"),
    ]
    found = compare(runs)
    assert [run.status for run in found.runs] == ["unfinished", "done", "done", "done"]
    assert [run.unit for run in found.runs if run.cost is not None] == ["MACs", "ms"]
    assert {"fit.seed", "strategy.kind"} <= {setting.name for setting in found.settings("partial")}
    assert "unfinished" in render_comparison(found)


def test_hostile_folder_names_stay_text(tmp_path: Path) -> None:
    runs = [train_run(tmp_path / "<b>x"), train_run(tmp_path / "y")]
    page = Page(render_comparison(compare(runs)))
    assert page.named("b") == []
    assert "<b>x" in "".join(page.words)


def test_names_are_as_long_as_needed(tmp_path: Path) -> None:
    assert short_names([tmp_path / "a" / "run", tmp_path / "b" / "run"]) == ["a/run", "b/run"]
    assert short_names([tmp_path / "a", tmp_path / "b"]) == ["a", "b"]


def test_one_run_or_the_same_twice_is_no_comparison(tmp_path: Path) -> None:
    run = train_run(tmp_path / "run")
    with pytest.raises(UserError, match="1 runs"):
        compare([run])
    with pytest.raises(UserError, match="twice"):
        compare([run, tmp_path / "x" / ".." / "run"])
    with pytest.raises(UserError, match="no folder"):
        compare([run, tmp_path / "nowhere"])

"""The comparison of searches on depth and pose: it runs, both searches start alike, the page shows stored results."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import task_searches
from tests.docs.markdown import ROOT

STORED = ROOT / "results" / "tasks.jsonl"


@pytest.mark.slow
@pytest.mark.parametrize("task", ["depth", "pose"])
def test_both_searches_begin_alike_and_their_winners_are_scored_elsewhere(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        task_searches.DATA, task, task_searches.DATA[task].replace("300", "8").replace("200", "4")
    )
    out = tmp_path / "searches.jsonl"
    small = "--trials 2 --steps 1 --longer 2 --seeds 1 --repeats 1 --budget 3MMACs"
    told = f"--tasks {task} {small} --cache {tmp_path} --out {out}"
    monkeypatch.setattr(sys, "argv", ["task_searches", *told.split()])
    task_searches.main()
    rows = task_searches.read_lines(out)
    assert [row["strategy"] for row in rows] == ["random", "evolution"]
    assert rows[0]["qualities"] == rows[1]["qualities"]
    for row in rows:
        assert row["cost"] <= 3e6
        assert {name: len(scores) for name, scores in row["scores"].items()} == {
            "unseen": 1,
            "longer": 1,
            "leaders": 2,
        }


def test_the_table_counts_the_seeds_at_which_a_strategy_is_ahead() -> None:
    figures = {("random", 0): 0.2, ("random", 1): 0.3, ("evolution", 0): 0.4, ("evolution", 1): 0.1}
    rows = [
        {"task": "depth", "strategy": strategy, "seed": seed, "qualities": [0.0, value]}
        | {"judged": value, "unseen": value, "longer": 0.5 - value, "leaders": value}
        for (strategy, seed), value in figures.items()
    ]
    lines = task_searches.shown(rows, figures=None).splitlines()
    ahead = "25.0 (40.0 10.0) | 25.0 (40.0 10.0) | 25.0 (10.0 40.0) | 25.0 (40.0 10.0) | 1, 1, 1, 1 of 2 |"
    assert lines[3] == f"| depth | evolution | {ahead}"


def test_the_page_shows_what_is_stored(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tasks.md").read_text()
    told = task_searches.shown(task_searches.read_lines(STORED), figures=tmp_path)
    assert all(line in page for line in told.splitlines())
    for picture in tmp_path.iterdir():
        assert picture.read_text() == (ROOT / "docs" / "figures" / picture.name).read_text()

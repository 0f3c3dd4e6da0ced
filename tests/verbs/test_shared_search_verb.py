"""`segtailor search --supernet RUN`: real spaces, every executor, from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from segtailor.runs import Layout
from segtailor.verbs.main import run

DATA = "synthetic:size=64x128,train=8,val=2"


def search(
    capsys: pytest.CaptureFixture[str], folder: Path, recipe: str, *words: str, out: str
) -> dict[str, Any]:
    cache = [] if "--cache" in words else ["--cache", str(folder / "cache")]
    where = ["--data", DATA, *cache, "--device", "cpu", "--json"]
    code = run(["search", recipe, *where, "--out", str(folder / out), *words])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    found: dict[str, Any] = json.loads(captured.out)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["squeezenas", "autortnet"])
def test_trials_in_processes_and_in_ray_score_as_serial_ones(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = ["strategy.fit.steps=2", "strategy.fit.batch=2"]
    choice = ["strategy.choice.samples=0", "strategy.choice.recalibrate=1"]
    search(capsys, tmp_path, recipe, "--set", *short, *choice, out="gradient")
    assert Layout(tmp_path / "gradient").supernet.is_dir()
    words = ["--supernet", str(tmp_path / "gradient"), "--strategy", "evolution", "--trials", "4"]
    settings = ["--set", "strategy.population=2", "evaluator.recalibrate=1"]
    found = {}
    executors = {"serial": ("1", "serial"), "processes": ("2", "processes")}
    if recipe == "squeezenas":
        pytest.importorskip("ray")
        executors["ray"] = ("2", "ray")
    for name, (workers, kind) in executors.items():
        how = ["--workers", workers, "--executor", kind, "--cache", str(tmp_path / f"cache-{name}")]
        found[name] = search(capsys, tmp_path, recipe, *words, *how, *settings, out=name)
    reports = {name: json.loads(Layout(tmp_path / name).result.read_text())["trials"] for name in executors}
    qualities = {name: [row["result"]["quality"] for row in rows] for name, rows in reports.items()}
    assert all(value == qualities["serial"] for value in qualities.values())
    assert not any(row["result"]["cached"] for rows in reports.values() for row in rows)
    assert len(qualities["serial"]) == 4


@pytest.mark.slow
def test_ray_trains_trials_through_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray")
    words = ["--strategy", "random", "--trials", "3", "--executor", "ray", "--workers", "2"]
    short = ["--set", "evaluator.fit.steps=1", "evaluator.fit.batch=2", "evaluator.reparameterise=false"]
    found = search(capsys, tmp_path, "lpsnet", *words, *short, out="run")
    assert found["trials"] == 3
    assert found["failed"] == 0

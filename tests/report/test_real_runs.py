"""Reports of runs that really took place: what the recipes write is what the reports read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from segtailor.core.codec import read_json
from segtailor.report.html import render, sections
from segtailor.report.reading import report_of
from segtailor.spaces import networks
from segtailor.verbs.main import run

pytestmark = pytest.mark.slow
DATA = "synthetic:size=64x128,train=8,val=4,seed=0"


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def test_a_real_training_with_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache, folder = str(tmp_path / "cache"), tmp_path / "run"
    common = ["--cache", cache, "--device", "cpu", "--json"]
    words = ["train", "lpsnet-step0", "--data", DATA, "--out", str(folder), "--epochs", "2", "--batch", "4"]
    assert run([*words, *common]) == 0
    capsys.readouterr()
    assert run(["report", str(folder), "--pictures", *common]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["missing"] == []
    assert {"classes", "pictures", "confusion", "training", "network"} <= set(facts["sections"])
    report = report_of(folder)
    assert report.quality is not None
    assert report.quality.miou == pytest.approx(read_json(folder / "result.json", what="result")["miou"])
    assert run(["eval", str(folder / "weights"), "--data", DATA, "--calibrate", *common]) == 0
    told = json.loads(capsys.readouterr().out)["calibration"]
    (fact,) = (one for one in report_of(folder).verdict.facts if "calibration" in one.name)
    assert fact.value.startswith(f"{100 * told['ece_after']:.1f} %")
    again = tmp_path / "again"
    again.mkdir()
    shutil.copy(folder / "recipe.json", again)  # the command that the page gives
    assert run(["resume", str(again), *common]) == 0
    assert json.loads(capsys.readouterr().out)["miou"] == report.quality.miou


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("lpsnet", ["--steps", "1", "--set", "training.fit.steps=2"]),
        ("lpsnet", ["--strategy", "random", "--trials", "2", "--set", "training.fit.steps=2"]),
        (
            "squeezenas",
            ["--set", "strategy.settings.fit.steps=4", "--set", "strategy.settings.choice.samples=2"],
        ),
    ],
)
def test_a_real_search(
    recipe: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    common = ["--cache", str(tmp_path / "cache"), "--device", "cpu", "--json"]
    assert run(["search", recipe, "--data", DATA, "--out", str(folder), *words, *common]) == 0
    capsys.readouterr()
    report = report_of(folder)
    assert report.missing == ()
    assert [place for place, _ in sections(report)] == [
        "verdict",
        "front",
        "network",
        "search",
        "conditions",
        "commands",
    ]
    assert report.search is not None
    assert bool(report.search.decisions) == (recipe == "squeezenas")
    assert all("option" not in story.options[0] for story in report.search.decisions)  # the space names them
    drawn = report.networks[0].plan
    result = read_json(folder / "result.json", what="result")
    assert (
        result["cost"]
        == networks.count(
            result["architecture"], image=(drawn.image.height, drawn.image.width), classes=10
        ).macs
    )
    assert result["cost"] == drawn.deployed().macs()
    render(report)

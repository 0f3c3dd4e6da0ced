"""The CamVid example: its plans are valid, its study resumes where it stopped, its table shows what was measured."""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from segtailor.recipes.recipe import with_settings
from segtailor.recipes.train import train_recipe
from segtailor.runs import Context
from segtailor.verbs.main import run as run_command
from tests.data.trees import write_pairs
from tests.docs.markdown import ROOT
from tests.scripts import load_script

FOLDER = ROOT / "examples" / "camvid"
SCRIPT = FOLDER / "study.py"
PLANS = [FOLDER / "plans" / f"{name}.json" for name in ("final", "found", "recipe")]
OUTCOMES = ROOT / "results" / "camvid" / "outcomes.jsonl"
DRIVES = ("0001TP_1", "0006R0_1", "0016E5_1")
SEARCHES = json.loads((FOLDER / "plans" / "searches.json").read_text())["rows"]
MEASURED = ("--pack", "--budget")  # need a calibration on the device


def load_study() -> ModuleType:
    return load_script(SCRIPT)


@pytest.fixture
def camvid(tmp_path: Path) -> Path:
    write_pairs(tmp_path / "camvid", DRIVES, range(11), split="train")
    return write_pairs(tmp_path / "camvid", ["0016E5_2"], range(11), split="val")


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.stem)
def test_every_row_of_a_plan_can_be_trained(plan: Path, camvid: Path, tmp_path: Path) -> None:
    context = Context(cache=tmp_path / "cache", device="cpu")
    runs = load_study().trainings(plan)
    for run in {run.row["name"]: run for run in runs}.values():
        changes = [*run.common, *run.row.get("set", [])]
        data = f"camvid:{camvid}?fold=0006R0"
        recipe = with_settings(train_recipe(run.network(), data, context=context), changes)
        assert recipe.fit.precision == "bf16"


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.stem)
def test_a_plan_repeats_the_recorded_trainings(plan: Path) -> None:
    study = load_study()
    options = SimpleNamespace(path=Path("PATH"), out=Path("RUNS"))
    recorded = [record for record in study.read_lines(OUTCOMES) if record["study"] == plan.stem]
    wanted = {study.run_name(record["name"], record["fold"], record["seed"]): record for record in recorded}
    runs = {run.name: run for run in study.trainings(plan)}
    assert runs.keys() == wanted.keys()
    for name, run in runs.items():
        words, told = run.command(options), shlex.split(wanted[name]["command"])[1:]
        words[1] = study.anywhere(words[1], options)
        at = words.index("--set")
        assert words[:at] == told[:at]
        assert settings(words[at + 1 :]) == settings(told[at + 1 :])


def settings(words: list[str]) -> dict[str, str]:
    """Return settings by name; of several values the last one counts. Compiling changes the speed only."""
    pairs = dict(word.split("=", 1) for word in words)
    return {name: value for name, value in pairs.items() if name != "fit.compile"}


def test_a_plan_may_bring_images_to_a_size(camvid: Path, tmp_path: Path) -> None:
    rows = [{"name": "a", "network": "lpsnet-step0", "folds": ["0006R0", "", "train+val"]}]
    plan = tmp_path / "plan.json"
    options = SimpleNamespace(path=camvid, out=tmp_path)

    def data(**more: str) -> list[str]:
        plan.write_text(json.dumps({"common": [], "rows": rows, **more}))
        commands = [run.command(options) for run in load_study().trainings(plan)]
        return [words[words.index("--data") + 1].removeprefix(f"camvid:{camvid}") for words in commands]

    assert data() == ["?fold=0006R0", "", ""]
    assert data(size="6x8") == ["?fold=0006R0&size=6x8", "?size=6x8", "?size=6x8"]


def test_the_table_has_means_over_seeds_and_drives(tmp_path: Path) -> None:
    study = load_study()
    for name, fold, seed, miou in (
        ("a", "x", 0, 0.4),
        ("a", "x", 1, 0.5),
        ("a", "y", 0, 0.3),
        ("b", "x", 0, 0.2),
    ):
        record = {"name": name, "fold": fold, "seed": seed, "result": {"miou": miou}}
        study.add_line(tmp_path / "outcomes.jsonl", record)
    final = {"name": "a", "fold": "train+val", "seed": 0, "result": {"steps": 2}}
    study.add_line(tmp_path / "outcomes.jsonl", final)
    rows = study.table(tmp_path).splitlines()[2:]
    assert rows == ["| a | 45.0 ± 7.1 | 30.0 | 37.5 |", "| b | 20.0 |  | |"]


@pytest.mark.slow
def test_students_follow_their_teachers_and_what_has_ended_is_not_repeated(
    camvid: Path, tmp_path: Path
) -> None:
    row = {"network": "lpsnet-step0", "folds": ["0006R0"]}
    plan = {
        "common": ["augment.crop=[6,8]", "fit.steps=2", "fit.batch=2"],
        "rows": [
            {**row, "name": "student", "teachers": ["one", "two"], "set": ["fit.distill.kind=kl"]},
            {**row, "name": "one"},
            {**row, "name": "one", "folds": ["train+val"]},
            {**row, "name": "two", "set": ["fit.lr=0.1"]},
        ],
    }
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    command = [sys.executable, str(SCRIPT), str(camvid), "--plan", str(tmp_path / "plan.json")]
    command += ["--out", str(tmp_path / "out"), "--minutes", "5"]
    first = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    study = load_study()
    names = ["one-0006R0-0", "one-train+val-0", "student-0006R0-0", "two-0006R0-0"]
    assert sorted(study.finished(tmp_path / "out")) == names, first
    final = json.loads((tmp_path / "out" / names[1] / "weights" / "model.json").read_text())
    assert final["provenance"]["train_images"] == len(DRIVES) + 1
    outcomes = study.read_lines(tmp_path / "out" / "outcomes.jsonl")
    (record,) = (record for record in outcomes if record["name"] == "student")
    assert record["study"] == "plan"
    assert "--teacher RUNS/teachers/student-0006R0-0" in record["command"]
    assert str(tmp_path) not in json.dumps(record)
    again = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert again.splitlines() == first.splitlines()[-5:]


@pytest.mark.slow
@pytest.mark.parametrize("row", SEARCHES, ids=lambda row: row["name"])
def test_every_search_of_the_plan_is_understood(
    row: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load_study()  # searches.py imports it
    searches = load_script(FOLDER / "searches.py")
    drives = ("0001TP_1", "0006R0_1", "0016E5_1", "0016E5_2")
    path = write_pairs(tmp_path / "camvid", drives, range(11), split="train")
    write_pairs(tmp_path / "camvid", ["0016E5_3"], range(11), split="val")
    options = argparse.Namespace(path=path, out=tmp_path / "runs", image="360x480", budget=None, set=[])
    budget = "90Mparams" if row["recipe"] == "auxcells" else "50GMACs"  # as long as nothing is measured
    words = [*without(searches.command_of(row, options), *MEASURED), "--budget", budget]
    if row["name"] == "fasterseg":  # at paper scale it wants a table of this size, too
        words = without(words, "--scale")
    assert run_command([*words, "--dry-run", "--cache", str(tmp_path / "cache")]) == 0, (
        capsys.readouterr().err
    )


def test_the_systems_are_the_five() -> None:
    assert {row["recipe"] for row in SEARCHES} == {
        "fasterseg",
        "autortnet",
        "auxcells",
        "squeezenas",
        "lpsnet",
    }


def without(words: list[str], *options: str) -> list[str]:
    for option in options:
        if option in words:
            place = words.index(option)
            words = words[:place] + words[place + 2 :]
    return words

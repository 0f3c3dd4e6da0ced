"""The study of CamVid: its plans are sound, it goes on where it stopped, and its table says what was measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from segtailor.recipes.train import train_recipe
from segtailor.runs import Context
from tests.data.trees import write_pairs
from tests.docs.markdown import ROOT
from tests.scripts import load_script

SCRIPT = ROOT / "examples" / "camvid" / "study.py"
NAMES = ("recipe", "networks", "candidates", "combined", "final", "found", "third", "val")
PLANS = [SCRIPT.parent / "plans" / f"{name}.json" for name in NAMES]
DRIVES = ("0001TP_1", "0006R0_1", "0016E5_1")


def load_study() -> ModuleType:
    return load_script(SCRIPT)


@pytest.fixture
def camvid(tmp_path: Path) -> Path:
    write_pairs(tmp_path / "camvid", DRIVES, range(11), split="train")
    return write_pairs(tmp_path / "camvid", ["0016E5_2"], range(11), split="val")


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.stem)
def test_every_row_of_a_plan_can_be_trained(plan: Path, camvid: Path, tmp_path: Path) -> None:
    around = Context(cache=tmp_path / "cache", device="cpu")
    runs = load_study().trainings(plan)
    for run in {run.row["name"]: run for run in runs}.values():
        file = plan.parent / run.row["network"]
        network = str(file) if file.exists() else run.row["network"]
        changes = [*run.common, *run.row.get("set", [])]
        recipe = train_recipe(network, f"camvid:{camvid}?fold=0006R0", changes=changes, surroundings=around)
        assert recipe.fit.precision == ("fp32" if plan.stem == "third" else "bf16")


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
    (tmp_path / "outcomes").mkdir()
    for name, fold, seed, miou in (
        ("a", "x", 0, 0.4),
        ("a", "x", 1, 0.5),
        ("a", "y", 0, 0.3),
        ("b", "x", 0, 0.2),
    ):
        record = {"name": name, "fold": fold, "seed": seed, "result": {"miou": miou}}
        (tmp_path / "outcomes" / f"{name}-{fold}-{seed}.json").write_text(json.dumps(record))
    final = {"name": "a", "fold": "train+val", "seed": 0, "result": {"steps": 2}}
    (tmp_path / "outcomes" / "a-final.json").write_text(json.dumps(final))
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
    outcomes = sorted(file.name for file in (tmp_path / "out" / "outcomes").iterdir())
    names = ["one-0006R0-0", "one-train+val-0", "student-0006R0-0", "two-0006R0-0"]
    assert outcomes == [f"{name}.json" for name in names], first
    final = json.loads((tmp_path / "out" / names[1] / "weights" / "model.json").read_text())
    assert final["provenance"]["train_images"] == len(DRIVES) + 1
    record = json.loads((tmp_path / "out" / "outcomes" / outcomes[2]).read_text())
    assert "--teacher RUNS/teachers/student-0006R0-0" in record["command"]
    assert str(tmp_path) not in json.dumps(record)
    again = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert again.splitlines() == first.splitlines()[-5:]

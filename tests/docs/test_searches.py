"""The plan of the five searches on CamVid: every row is a search that segtailor understands."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from segtailor.verbs.main import run
from tests.data.trees import write_pairs
from tests.docs.markdown import ROOT
from tests.scripts import load_script

FOLDER = ROOT / "examples" / "camvid"
ROWS = json.loads((FOLDER / "plans" / "searches.json").read_text())["rows"]
MEASURED = ("--pack", "--budget")  # need a calibration on the device


def without(words: list[str], *options: str) -> list[str]:
    for option in options:
        if option in words:
            place = words.index(option)
            words = words[:place] + words[place + 2 :]
    return words


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_every_search_of_the_plan_is_understood(
    row: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load_script(FOLDER / "study.py")  # which the other program imports from
    searches = load_script(FOLDER / "searches.py")
    drives = ("0001TP_1", "0006R0_1", "0016E5_1", "0016E5_2")
    path = write_pairs(tmp_path / "camvid", drives, range(11), split="train")
    write_pairs(tmp_path / "camvid", ["0016E5_3"], range(11), split="val")
    options = argparse.Namespace(path=path, out=tmp_path / "runs", image="360x480", budget=None, set=[])
    budget = "90Mparams" if row["recipe"] == "auxcells" else "50GMACs"  # as long as nothing is measured
    words = [*without(searches.command_of(row, options), *MEASURED), "--budget", budget]
    if row["name"] == "fasterseg":  # at paper scale it wants a table of this size, too
        words = without(words, "--scale")
    assert run([*words, "--dry-run", "--cache", str(tmp_path / "cache")]) == 0, capsys.readouterr().err


def test_the_systems_are_the_five() -> None:
    assert {row["recipe"] for row in ROWS} == {"fasterseg", "autortnet", "auxcells", "squeezenas", "lpsnet"}

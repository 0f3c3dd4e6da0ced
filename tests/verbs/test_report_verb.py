"""`segtailor report`: what it writes, prints and refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from segtailor.verbs.main import run
from tests.report.folders import search_run, train_run


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = run(["report", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_one_run_gets_its_page_inside_its_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = train_run(tmp_path / "run")
    code, out, _ = call(capsys, folder)
    assert code == 0
    assert "reaches 41.0 % mIoU" in out
    assert str(folder / "report" / "index.html") in out
    assert (folder / "report" / "index.html").read_text().startswith("<!doctype html>")


def test_json_tells_where_and_what(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder, page = train_run(tmp_path / "run", finished=False), tmp_path / "deep" / "page.html"
    code, out, _ = call(capsys, folder, "--out", page, "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["report"] == str(page)
    assert facts["bytes"] == page.stat().st_size
    assert facts["sections"] == ["verdict", "network", "training", "conditions", "commands"]
    assert len(facts["missing"]) == 1


def test_several_runs_are_compared(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [train_run(tmp_path / "a"), search_run(tmp_path / "b")]
    code, out, _ = call(capsys, *runs, "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["report"] == "comparison.html"
    assert [row["name"] for row in facts["compared"]] == ["a", "b"]
    assert (tmp_path / "comparison.html").is_file()
    code, out, _ = call(capsys, *runs)
    assert code == 0
    assert "settings differ" in out


def test_a_dry_run_writes_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = train_run(tmp_path / "run")
    code, out, _ = call(capsys, folder, "--dry-run", "--json")
    assert code == 0
    assert json.loads(out)["report"] == str(folder / "report" / "index.html")
    assert not (folder / "report").exists()


def test_mistakes_are_explained(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = train_run(tmp_path / "run")
    cases: tuple[tuple[list[object], str], ...] = (
        ([], "needs a run"),
        ([tmp_path / "nowhere"], "is no folder"),
        ([tmp_path], "no run directory"),
        ([folder, "--out", tmp_path], "is a folder"),
        ([folder, "--out", folder / "recipe.json" / "x.html"], "cannot be made"),
        ([folder, folder], "twice"),
    )
    for words, says in cases:
        code, out, err = call(capsys, *words)
        assert code == 1, words
        assert out == ""
        assert says in err


@pytest.mark.slow
def test_a_report_needs_no_torch(tmp_path: Path) -> None:
    folder = search_run(tmp_path / "run")
    program = (
        "import sys; from segtailor.verbs.main import run; code = run(sys.argv[1:]); "
        "sys.exit(code or 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "report", str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr

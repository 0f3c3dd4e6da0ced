"""Runs of earlier versions, whose recipes kept fields under `settings`: results and reports stay readable."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from segtailor.core.errors import RunProblem
from segtailor.recipes.recipe import parse_recipe, recipe_document
from segtailor.recipes.search import SearchRecipe
from segtailor.report.folder import open_run
from segtailor.report.of_search import search_report, search_story, unit_of
from segtailor.report.reading import report_of
from segtailor.runs import Context, Layout
from segtailor.systems import autortnet, auxcells, fasterseg
from segtailor.verbs.main import run as command
from segtailor.verbs.report import report
from segtailor.verbs.resume import resume
from segtailor.verbs.search import search
from tests.support import FIXTURES
from tests.systems.tiny import context_in, system_on

OLD_CALIBRATION = {
    "kind": "calibrate",
    "space": "scalable_path",
    "target": "cpu/eager/fp32",
    "image": [32, 64],
}


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURES / "old_search", tmp_path / "run"))


@pytest.fixture
def unfinished(finished: Path) -> Path:
    Layout(finished).result.unlink()
    return finished


def test_a_finished_old_search_still_shows_its_result(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = json.loads(Layout(finished).result.read_text())
    assert resume(finished) == wanted
    assert command(["resume", str(finished), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fingerprint"] == wanted["fingerprint"]


def test_an_unfinished_old_search_is_refused_in_one_clear_line(
    unfinished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted(path.name for path in unfinished.iterdir())
    assert command(["resume", str(unfinished)]) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "was written by an earlier version" in line
    assert "Start it again in another folder" in line
    assert sorted(path.name for path in unfinished.iterdir()) == files


def test_a_new_search_does_not_go_on_in_the_folder_of_an_old_one(unfinished: Path) -> None:
    before = Layout(unfinished).recipe.read_text()
    with pytest.raises(RunProblem, match="another recipe"):
        search(system_on("lpsnet"), unfinished, context=context_in(unfinished.parent))
    assert Layout(unfinished).recipe.read_text() == before


def test_an_old_calibration_is_recognised(tmp_path: Path) -> None:
    with pytest.raises(RunProblem, match=r"earlier version.*another folder"):
        parse_recipe(OLD_CALIBRATION, what="recipe")
    run = written(tmp_path, OLD_CALIBRATION, {"networks": 2})
    assert resume(run, context=Context()) == {"networks": 2}
    assert report_of(run).title == "Calibration of scalable_path"


def test_the_report_of_an_old_search_says_what_it_found(finished: Path) -> None:
    result = report([finished])
    assert str(result["verdict"]).startswith("The chosen one of 10 networks reaches")
    page = search_report(open_run(finished))
    assert page.subtitle.startswith("expansion in scalable_path on synthetic")
    assert page.front is not None
    assert page.front.cost_name == "multiply-accumulates"


@pytest.mark.parametrize("recipe", [fasterseg.PAPER, autortnet.SMALL, auxcells.SMALL])
def test_reports_read_both_forms_alike(recipe: SearchRecipe, tmp_path: Path) -> None:
    decision = recipe.space.decisions[-1]
    likely = [1 / len(decision.options)] * len(decision.options)
    moment = {"done": 1, "roles": {"student": {"probabilities": {decision.name: likely}}}}
    new = recipe_document(recipe)
    runs = [
        open_run(written(tmp_path / str(number), document, {"trajectory": [moment]}))
        for number, document in enumerate((new, old_form(new)))
    ]
    assert [unit_of(run) for run in runs] == [recipe.cost.unit] * 2
    assert search_report(runs[0]).subtitle == search_report(runs[1]).subtitle
    for run in runs:
        (story,) = search_story(run).decisions
        assert story.options == tuple(str(option) for option in decision.options)


def old_form(document: dict[str, Any]) -> dict[str, Any]:
    """Write a search recipe as earlier versions did."""
    old = dict(document)
    for name in ("space", "strategy", "objective"):
        part = document[name]
        fields = {key: value for key, value in part.items() if key != "kind"} if part else {}
        old[name] = {"kind": part["kind"], "settings": fields} if part else None
    if document["cost"]["kind"] in ("pack", "measured"):
        old["cost"] = {"pack": None, "seconds": 0.5, **document["cost"], "kind": "latency"}
    return old


def written(folder: Path, document: dict[str, Any], result: dict[str, Any]) -> Path:
    layout = Layout(folder / "run")
    layout.root.mkdir(parents=True)
    layout.recipe.write_text(json.dumps(document))
    if result:
        layout.result.write_text(json.dumps(result))
    return layout.root

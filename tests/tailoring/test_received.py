"""A tailoring that somebody else made: its stages are not trusted, and nothing outside of its folder is written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from segtailor.core.errors import RunProblem, UserError
from segtailor.recipes.recipe import recipe_document
from segtailor.recipes.search import SearchRecipe
from segtailor.runs import Context
from segtailor.strategies.evaluators.staged import StagedEvaluator
from segtailor.tailoring import tailor as tailor_module
from segtailor.tailoring.delivering import decide_int8, export
from segtailor.tailoring.recipe import TailorRecipe
from segtailor.tailoring.stage import Recommendation
from segtailor.verbs.resume import resume
from segtailor.verbs.search import system_recipe
from tests.tailoring.test_job import DATA, recipe, stage_context


def with_code(context: Context, module: str) -> SearchRecipe:
    """A search whose teacher is code that is imported by name."""
    search = system_recipe("auxcells", DATA, scale="small", context=context)
    assert isinstance(search.evaluator, StagedEvaluator)
    return replace(search, evaluator=replace(search.evaluator, teacher=f"{module}:build"))


def test_the_stages_of_a_received_tailoring_are_not_trusted_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "somebody_else.py").write_text(
        f"import pathlib\npathlib.Path({str(tmp_path / 'imported')!r}).touch()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    stage = stage_context(tmp_path / "run")
    stage = replace(stage, context=replace(stage.context, trusted=False))
    search = with_code(stage.context, "somebody_else")
    begun = stage.run_folder("search")
    begun.mkdir(parents=True)
    (begun / "recipe.json").write_text(json.dumps(recipe_document(search)))
    for name in ("search", "new"):  # one that began before, and one that follows from files of the run
        with pytest.raises(UserError, match="--trust-code"):
            stage.carry_out(search, name)
    assert not (tmp_path / "imported").exists()


def test_stages_are_trusted_only_where_a_tailoring_is_resumed_with_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def carried_out(plan: TailorRecipe, context: Context) -> dict[str, bool]:
        seen.append(context.trusted)
        return {"met": True}

    monkeypatch.setattr(TailorRecipe, "carry_out", carried_out)
    monkeypatch.setattr(tailor_module, "plan", lambda *_: recipe())
    tailor_module.tailor(DATA, budget=20.0, out=tmp_path / "new")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "recipe.json").write_text(json.dumps(recipe_document(recipe())))
    resume(tmp_path / "old")
    resume(tmp_path / "old", trust_code=True)
    assert seen == [False, False, True]


@pytest.mark.parametrize("where", ["elsewhere", "run/../elsewhere", "run/link"])
def test_a_tailoring_exports_into_its_folder_alone(tmp_path: Path, where: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "link").symlink_to(tmp_path / "elsewhere")
    best = Recommendation(
        networks=(), network="searched", model=str(tmp_path / where), miou=0.5, worth=True, best_ready=None
    )
    for work in (export, decide_int8):
        with pytest.raises(RunProblem, match="outside of itself"):
            work(stage_context(tmp_path / "run"), best)
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("name", ["../../../x", "a/b", "/x", "..", ".hidden", "a\nb"])
def test_names_of_networks_in_files_of_a_tailoring_are_plain_names(tmp_path: Path, name: str) -> None:
    stage = stage_context(tmp_path / "run")
    with pytest.raises(RunProblem, match="no plain name"):
        stage.run_folder(name)
    assert stage.run_folder("baseline-stdc1-seg").parent.name == "stages"

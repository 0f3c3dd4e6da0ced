"""A tailoring whose files were changed or made by somebody else: it writes inside its folder and imports nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from segtailor.core.errors import RunProblem, UserError
from segtailor.recipes.recipe import recipe_document
from segtailor.spaces.decoder_cell.encoders import ENCODERS
from segtailor.tailoring.delivering import decide_int8, export
from segtailor.tailoring.stage import Recommendation
from tests.recipes.test_trust import code as code
from tests.recipes.test_trust import received
from tests.strategies.tiny_encoder import TINY
from tests.systems.tiny import tiny_auxcells
from tests.tailoring.test_job import stage_context


@pytest.mark.parametrize("where", ["elsewhere", "run/../elsewhere", "run/link"])
def test_a_tailoring_exports_into_itself_alone(tmp_path: Path, where: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "link").symlink_to(tmp_path / "elsewhere")
    best = Recommendation(
        networks=(), network="x", model=str(tmp_path / where), miou=0.5, worth=True, best_ready=None
    )
    for work in (export, decide_int8):
        with pytest.raises(RunProblem, match="outside of itself"):
            work(stage_context(tmp_path / "run"), best)
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("name", ["../../../x", "a/b", "/x", "..", ".hidden", "a\nb"])
def test_names_of_networks_in_files_of_a_tailoring_stay_names(tmp_path: Path, name: str) -> None:
    stage = stage_context(tmp_path / "run")
    with pytest.raises(RunProblem, match="no plain name"):
        stage.run_folder(name)
    assert stage.run_folder("baseline-stdc1-seg").parent.name == "stages"


def test_the_stages_of_a_received_tailoring_are_not_trusted_either(
    tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENCODERS, "tiny", TINY)
    recipe = tiny_auxcells(trials=2, teacher="somebody_else:build")
    received(tmp_path / "run" / "stages" / "search", recipe_document(recipe))
    stage = stage_context(tmp_path / "run")
    stage = replace(stage, context=replace(stage.context, trusted=False))
    for name in ("search", "new"):  # one that was started before, and one that follows from files of the run
        with pytest.raises(UserError, match="--trust-code"):
            stage.carry_out(recipe, name)
    assert not code.exists()

"""A run of somebody else: its recipe may choose among what is installed, but neither run code nor call out."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from segtailor.core.codec import to_json
from segtailor.core.space import architecture_document
from segtailor.core.strategy import Trial
from segtailor.core.trust import Untrusted
from segtailor.data.augment import Augment
from segtailor.data.synthetic import TASK
from segtailor.recipes.evaluators import judge_in_stages
from segtailor.recipes.recipe import recipe_document
from segtailor.recipes.train import TrainRecipe
from segtailor.spaces.decoder_cell.encoders import ENCODERS
from segtailor.strategies import Ray
from segtailor.verbs.main import run as command
from segtailor.verbs.resume import resume
from segtailor.verbs.search import search
from tests.strategies.tiny_encoder import TINY
from tests.systems.tiny import DATA, context_in, system_on, tiny_auxcells

CODE = """
from pathlib import Path
from torch import nn

def build():
    Path(__file__).with_name("ran").write_text("ran")
    return nn.Conv2d(3, CLASSES, 1)
"""


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENCODERS, "tiny", TINY)


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file that appears when the module `somebody_else` is imported and its function called."""
    folder = tmp_path / "importable"
    folder.mkdir()
    (folder / "somebody_else.py").write_text(CODE.replace("CLASSES", str(TASK.outputs)))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "somebody_else", raising=False)
    return folder / "ran"


def received(folder: Path, document: Mapping[str, Any]) -> Path:
    """Write a run directory as somebody else may send it."""
    folder.mkdir(parents=True)
    (folder / "recipe.json").write_text(json.dumps(document))
    return folder


def test_a_received_recipe_that_names_a_function_runs_nothing_unless_trusted(
    tmp_path: Path, code: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = received(tmp_path / "run", recipe_document(tiny_auxcells(trials=2, teacher="somebody_else:build")))
    assert command(["resume", str(run), "--cache", str(tmp_path / "cache"), "--device", "cpu"]) == 1
    told = capsys.readouterr().err
    assert "somebody_else:build" in told
    assert "--trust-code" in told
    assert "Traceback" not in told
    assert not code.exists()
    found = resume(run, trust_code=True, context=context_in(tmp_path))
    assert code.exists()
    assert len(found["trials"]) == 2  # type: ignore[arg-type]


def test_a_function_that_was_typed_is_called(tmp_path: Path, code: Path) -> None:
    search(
        tiny_auxcells(trials=2, teacher="somebody_else:build"), tmp_path / "run", context=context_in(tmp_path)
    )
    assert code.exists()


def test_a_refused_recipe_stays_in_its_folder_as_it_was(tmp_path: Path, code: Path) -> None:
    run = received(tmp_path / "run", recipe_document(tiny_auxcells(trials=2, teacher="somebody_else:build")))
    before = (run / "recipe.json").read_text()
    with pytest.raises(Untrusted):
        resume(run, context=context_in(tmp_path))
    assert (run / "recipe.json").read_text() == before
    assert not code.exists()


def test_a_worker_calls_nothing_for_a_trial_that_is_not_trusted(tmp_path: Path, code: Path) -> None:
    recipe = tiny_auxcells(trials=2, teacher="somebody_else:build")
    space: Any = recipe.space
    arch = space.architecture({decision.name: 0 for decision in space.decisions})
    told = {
        "staged": to_json(recipe.evaluator),
        "encoder": "tiny",
        "data": DATA,
        "cache": str(tmp_path / "cache"),
        "judging": 0.5,
    }
    trial = Trial(id=0, architecture=architecture_document(arch), evaluator=told, trusted=False)
    with pytest.raises(Untrusted, match="somebody_else:build"):
        judge_in_stages(trial, "cpu")
    assert not code.exists()


def test_a_received_recipe_contacts_no_ray_cluster_unless_trusted(tmp_path: Path) -> None:
    recipe = replace(system_on("lpsnet"), executor=Ray(address="10.255.255.1:6379"))
    with pytest.raises(Untrusted, match=r"Ray cluster at '10\.255\.255\.1:6379'.*--trust-code"):
        resume(received(tmp_path / "run", recipe_document(recipe)), context=context_in(tmp_path))
    assert (
        recipe.problem(context_in(tmp_path / "other")).executor is not None
    )  # as typed; it connects when it starts


def test_a_received_training_fetches_no_weights_unless_trusted(tmp_path: Path) -> None:
    space: Any = tiny_auxcells().space
    arch = space.architecture({decision.name: 0 for decision in space.decisions})
    recipe = TrainRecipe(
        architecture=arch,
        data=DATA,
        augment=Augment(crop=(32, 64)),
        start="timm:resnet18",
    )
    with pytest.raises(Untrusted, match=r"timm.*--trust-code"):
        resume(received(tmp_path / "run", recipe_document(recipe)), context=context_in(tmp_path))

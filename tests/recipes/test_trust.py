"""A run of somebody else: its recipe may choose among what is installed, but neither run code nor call out."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from segtailor.recipes.systems import Occasion

from segtailor.core.codec import to_json
from segtailor.core.errors import UserError
from segtailor.core.registry import SPACES, SYSTEMS
from segtailor.core.space import architecture_document
from segtailor.core.strategy import SearchProblem, Trial
from segtailor.core.trust import Untrusted
from segtailor.data.augment import Augment
from segtailor.data.synthetic import TASK
from segtailor.recipes.evaluators import judge_in_stages
from segtailor.recipes.recipe import recipe_document
from segtailor.recipes.search import SearchRecipe
from segtailor.recipes.train import TrainRecipe
from segtailor.runs import Context, Policy
from segtailor.spaces.decoder_cell.encoders import ENCODERS
from segtailor.tailoring.context import Context
from segtailor.verbs.main import run as command
from segtailor.verbs.resume import resume
from segtailor.verbs.search import search
from tests.strategies.tiny_encoder import TINY

DATA = "synthetic:size=32x64,train=10,val=2"
OCCASION = Occasion(data=DATA, size=(32, 64), crop=(32, 64))
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


def around(folder: Path, **more: Any) -> Context:
    return Context(cache=folder / "cache", device="cpu", policy=Policy(tensorboard=False), **more)


def staged(name: str = "auxcells", **changes: Any) -> SearchRecipe:
    """Return a recipe whose stages take a step or two."""
    recipe = SYSTEMS.get(name)("small", OCCASION)
    assert recipe.staged is not None
    assert recipe.staged.stage2 is not None
    short = replace(
        recipe.staged,
        images=4,
        stage1=replace(recipe.staged.stage1, epochs=1, batch=2),
        stage2=replace(recipe.staged.stage2, steps=1, batch=2),
        **changes,
    )
    plain = dict(recipe.strategy.settings)
    plain |= (
        {"trials": 2, "batch": 2, "hidden": 8, "layers": 1} if "trials" in plain else {"architectures": 1}
    )
    return replace(
        recipe,
        space=replace(recipe.space, settings={**recipe.space.settings, "encoder": "tiny", "channels": 4}),
        staged=short,
        strategy=replace(recipe.strategy, settings=plain),
    )


def received(folder: Path, document: Mapping[str, Any]) -> Path:
    """Write a run directory as somebody else may send it."""
    folder.mkdir(parents=True)
    (folder / "recipe.json").write_text(json.dumps(document))
    return folder


def test_a_received_recipe_that_names_a_function_runs_nothing_unless_trusted(
    tmp_path: Path, code: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = received(tmp_path / "run", recipe_document(staged(teacher="somebody_else:build")))
    assert command(["resume", str(run), "--cache", str(tmp_path / "cache"), "--device", "cpu"]) == 1
    told = capsys.readouterr().err
    assert "somebody_else:build" in told
    assert "--trust-code" in told
    assert "Traceback" not in told
    assert not code.exists()
    found = resume(run, context=around(tmp_path, trust_code=True))
    assert code.exists()
    assert len(found["trials"]) == 2  # type: ignore[arg-type]


def test_a_function_that_was_typed_is_called(tmp_path: Path, code: Path) -> None:
    search(staged(teacher="somebody_else:build"), tmp_path / "run", context=around(tmp_path))
    assert code.exists()


def test_a_refused_recipe_stays_in_its_folder_as_it_was(tmp_path: Path, code: Path) -> None:
    run = received(tmp_path / "run", recipe_document(staged(teacher="somebody_else:build")))
    before = (run / "recipe.json").read_text()
    with pytest.raises(Untrusted):
        resume(run, context=around(tmp_path))
    assert (run / "recipe.json").read_text() == before
    assert not code.exists()


@pytest.mark.parametrize("change", [{"teacher": "somebody_else:build"}, {"encoder_weights": "timm"}])
def test_variants_of_a_received_ablation_cannot_bring_code_or_weights_in(
    tmp_path: Path, code: Path, change: dict[str, str]
) -> None:
    document = recipe_document(staged("auxcells-tricks"))
    strategy: Any = document["strategy"]
    strategy["settings"]["variants"][1]["changes"] = {"staged": change}
    with pytest.raises(Untrusted, match="--trust-code"):
        resume(received(tmp_path / "run", document), context=around(tmp_path))
    assert not code.exists()


def test_variants_cannot_move_the_cache(tmp_path: Path) -> None:
    document = recipe_document(staged("auxcells-tricks"))
    strategy: Any = document["strategy"]
    strategy["settings"]["variants"][1]["changes"] = {"cache": str(tmp_path / "elsewhere")}
    with pytest.raises(SearchProblem, match="where trials read and write"):
        resume(received(tmp_path / "run", document), context=around(tmp_path, trust_code=True))
    assert not (tmp_path / "elsewhere").exists()


def test_a_worker_calls_nothing_for_a_trial_that_is_not_trusted(tmp_path: Path, code: Path) -> None:
    recipe = staged(teacher="somebody_else:build")
    space: Any = recipe.space.build(SPACES)
    arch = space.architecture({decision.name: 0 for decision in space.decisions})
    told = {
        "staged": to_json(recipe.staged),
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
    recipe = SYSTEMS.get("lpsnet")("small", OCCASION)
    recipe = replace(recipe, executor=replace(recipe.executor, kind="ray", address="10.255.255.1:6379"))
    with pytest.raises(Untrusted, match=r"Ray cluster at '10\.255\.255\.1:6379'.*--trust-code"):
        resume(received(tmp_path / "run", recipe_document(recipe)), context=around(tmp_path))
    place = Context(folder=tmp_path / "other", cache=tmp_path / "cache", device="cpu")
    assert recipe.problem(place).executor is not None  # as typed; it connects when the search starts


def test_a_received_training_fetches_no_weights_unless_trusted(tmp_path: Path) -> None:
    space: Any = staged().space.build(SPACES)
    arch = space.architecture({decision.name: 0 for decision in space.decisions})
    recipe = TrainRecipe(
        architecture=architecture_document(arch),
        data=DATA,
        augment=Augment(crop=(32, 64)),
        encoder_weights="timm",
    )
    with pytest.raises(Untrusted, match=r"timm.*--trust-code"):
        resume(received(tmp_path / "run", recipe_document(recipe)), context=around(tmp_path))


def test_the_stages_of_a_received_tailoring_are_not_trusted_either(tmp_path: Path, code: Path) -> None:
    recipe = staged(teacher="somebody_else:build")
    received(tmp_path / "run" / "stages" / "search", recipe_document(recipe))
    stage = Context(recipe=NotRead(), folder=tmp_path / "run", around=around(tmp_path))  # type: ignore[arg-type]
    for name in ("search", "new"):  # one that began before, and one that follows from files of the run
        with pytest.raises(UserError, match="--trust-code"):
            stage.carry_out(recipe, name)
    assert not code.exists()


class NotRead:
    """Stands where the recipe of a tailoring would; carrying a stage out does not look at it."""

"""The recipe behind `segtailor calibrate`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from segtailor.core.errors import RunProblem, Unsupported, UserError
from segtailor.core.plan import Shape
from segtailor.costs.latency import PackLatency
from segtailor.costs.pack import Use
from segtailor.recipes.calibrate import CalibrateRecipe
from segtailor.recipes.recipe import parse_recipe, recipe_document
from segtailor.runs import Context
from segtailor.spaces.scalable_path import ScalablePath
from segtailor.verbs.calibrate import calibrate, pack_name, run_folder
from segtailor.verbs.resume import resume

torch.set_num_threads(1)
TINY = CalibrateRecipe(
    space=ScalablePath(depths=(1,), width_steps=(1, 2), ratios=("0", "1"), paths=1),
    target="cpu/onnxruntime/fp32?threads=1",
    image=(32, 64),
    classes=4,
    seconds_per_entry=0.0,
    fit_networks=2,
    trust_networks=2,
)


def test_a_recipe_survives_its_file() -> None:
    document = json.loads(json.dumps(recipe_document(TINY)))
    assert parse_recipe(document, what="recipe") == TINY


def test_settings_reach_the_space(tmp_path: Path) -> None:
    calibration = TINY.job(Context(folder=tmp_path)).calibration
    assert len(list(calibration.space.calls(Shape(3, 32, 64), 4))) < 30


def test_unknown_spaces_and_settings_are_refused() -> None:
    document: Any = recipe_document(TINY)
    with pytest.raises(RunProblem, match=r"recipe: space: no space is called 'path'; known: .*scalable_path"):
        parse_recipe({**document, "space": {"kind": "path"}}, what="recipe")
    with pytest.raises(RunProblem, match=r"recipe: space\.colour: no such field; space has: kind, .*depths"):
        parse_recipe({**document, "space": {**document["space"], "colour": 1}}, what="recipe")


def test_names_of_packs_are_plain() -> None:
    assert pack_name(TINY) == "scalable_path-32x64-cpu-onnxruntime-fp32-threads-1.json"


def test_a_mistake_leaves_no_run_directory(tmp_path: Path) -> None:
    with pytest.raises(Unsupported):
        calibrate(replace(TINY, target="cpu/graph/fp16"), tmp_path / "none" / "pack.json")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="folder of the pack"):
        calibrate(TINY, tmp_path / "file" / "pack.json")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_calibration_leaves_pack_plot_and_a_run_that_can_be_read_again(tmp_path: Path) -> None:
    out = tmp_path / "pack.json"
    result = calibrate(TINY, out)
    assert result["networks"] == 2
    assert out.with_suffix(".svg").read_text().startswith("<svg")
    again = resume(run_folder(out))
    assert again["mape"] == result["mape"]
    table = PackLatency(pack=str(out)).open(
        Use(space="scalable_path", image=(32, 64), classes=4, target=TINY.target)
    )
    assert all(table.price(call) >= 0 for call in TINY.space.calls(Shape(3, 32, 64), 4))
    with pytest.raises(Unsupported, match="image"):
        PackLatency(pack=str(out)).open(Use(image=(64, 64)))
    with pytest.raises(RunProblem, match="another recipe"):
        calibrate(replace(TINY, classes=5), out)

"""`segtailor export --precision int8`: the decision is kept with the bundle, and a new export makes it void."""

import json
from pathlib import Path

import pytest

import segtailor
from segtailor.data.locate import locate
from segtailor.nets.bundle import Model, save_bundle
from segtailor.verbs.main import run

DATA = "synthetic:size=64x96,train=6,val=3,seed=0"


def bundle(folder: Path) -> Path:
    task = locate(DATA).task
    save_bundle(folder, Model(network=segtailor.create("lpsnet-step0", classes=task.outputs), task=task))
    return folder


@pytest.mark.slow
def test_int8_is_decided_on_one_target_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = bundle(tmp_path / "model")
    words = ["export", str(folder), "--precision", "int8", "--data", DATA, "--image", "64x96"]
    assert run([*words, "--target", "cpu/onnxruntime/int8", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["int8"]
    assert told["reason"]
    assert (folder / "model.int8.onnx").exists() == told["kept"]
    assert (folder / "int8.json").exists()
    assert run(["export", str(folder), "--image", "64x96", "--json"]) == 0
    assert not (folder / "int8.json").exists()


@pytest.mark.parametrize(
    "more",
    [[], ["--data", DATA, "--dynamic"], ["--data", DATA, "--out", "x"], ["--data", DATA, "--to", "openvino"]],
)
def test_int8_without_pictures_or_elsewhere_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    assert run(["export", str(tmp_path), "--precision", "int8", *more]) == 1
    assert "--data" in capsys.readouterr().err

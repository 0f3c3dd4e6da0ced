"""`segtailor export --precision int8`: the decision is kept with the bundle, and a new export makes it void."""

import json
from pathlib import Path

import pytest

import segtailor
from segtailor.data.locate import locate
from segtailor.deploy.formats import FORMATS
from segtailor.nets.bundle import Model, save_bundle
from segtailor.nets.mobile.converter import missing
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
    [
        [],
        ["--data", DATA, "--dynamic"],
        ["--data", DATA, "--to", "openvino"],
        ["--to", "ncnn"],
    ],
)
def test_int8_without_pictures_or_elsewhere_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    assert run(["export", str(tmp_path), "--precision", "int8", *more]) == 1
    assert "--data" in capsys.readouterr().err


@pytest.mark.slow
def test_int8_elsewhere_brings_its_bundle_along(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = bundle(tmp_path / "model"), tmp_path / "a b" / "out"
    words = [
        "export",
        str(folder),
        "--precision",
        "int8",
        "--data",
        DATA,
        "--image",
        "64x96",
        "--tune-steps",
        "0",
    ]
    words += ["--target", "cpu/onnxruntime/int8", "--out", str(out), "--json"]
    assert run(words) == 0
    told = json.loads(capsys.readouterr().out)["int8"]
    assert sorted(path.name for path in folder.iterdir()) == ["model.json", "model.safetensors"]
    assert (out / "model.int8.onnx").exists() == told["kept"]
    assert (out / "model.json").read_bytes() == (folder / "model.json").read_bytes()
    assert run(words) == 0  # again: the same bundle is there
    (out / "model.json").write_text((out / "model.json").read_text() + " ")
    assert run(words) == 1
    assert "another bundle" in capsys.readouterr().err


def test_int8_is_measured_where_its_file_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", str(tmp_path), "--precision", "int8", "--data", DATA]
    assert run([*words, "--to", "ncnn", "--target", "cpu/onnxruntime/int8"]) == 1
    assert "cpu/ncnn/int8" in capsys.readouterr().err
    assert run([*words, "--target", "cpu/ncnn/int8"]) == 1
    assert "cpu/openvino/int8" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("to", ["ncnn", "litert"])
def test_files_of_phones_are_decided_on_by_the_command(
    to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = missing(FORMATS[to].converter)  # type: ignore[attr-defined]
    if reason is not None:
        pytest.skip(reason)
    folder = bundle(tmp_path / "model")
    words = ["export", str(folder), "--to", to, "--precision", "int8", "--data", DATA, "--image", "64x96"]
    assert run([*words, "--tune-steps", "0", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["int8"]
    assert told["target"] == f"cpu/{to}/int8"
    assert told["reason"]
    assert (folder / f"int8.{to}.json").exists()
    assert any(folder.glob("model.int8.*")) == told["kept"]
    assert run(words) == 0  # our own files may be replaced
    assert "int8: int8" in capsys.readouterr().out

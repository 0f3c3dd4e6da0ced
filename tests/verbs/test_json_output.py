"""`--json` prints one document that keeps to its schema, for every verb."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator, ValidationError
from PIL import Image

import segtailor
from segtailor.data.synthetic import TASK
from segtailor.nets.bundle import Model, save_bundle
from segtailor.verbs.main import run
from tests.schemas import conforming, schema

TINY = "synthetic:size=32x64,train=8,val=2,seed=0"
SURFACE = json.loads((Path(__file__).parents[1] / "golden" / "cli.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "small"
    network = segtailor.create("lpsnet-step0", classes=len(TASK.classes), seed=1)
    save_bundle(folder, Model(network=network, task=TASK))
    return str(folder)


def printed(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> str:
    ended = run([*map(str, words), "--json"])
    captured = capsys.readouterr()
    assert ended == code, captured.err
    return captured.out


def test_every_verb_has_a_schema_and_prints_json() -> None:
    Draft202012Validator.check_schema(schema())
    assert set(SURFACE) <= set(schema()["$defs"])
    assert all("--json" in flags for flags in SURFACE.values())


def test_a_document_that_breaks_the_contract_is_refused() -> None:
    good = {"macs": 1, "params": 1, "train_params": 1, "output_stride": 8.0}
    conforming("show", json.dumps(good))
    for broken in ({**good, "macs": "1"}, {**good, "params": -1}, {"macs": 1}):
        with pytest.raises(ValidationError):
            conforming("show", json.dumps(broken))


KINDS = SURFACE["list"]["--what"].split(" ")[0].split("|")


@pytest.mark.parametrize("what", [kind for kind in KINDS if kind not in ("runtimes", "targets", "weights")])
def test_list(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = conforming("list", printed(capsys, "list", what))
    names = [row["name"] for row in rows] if what == "starts" else rows
    assert len(names) == len(set(names)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("what", ["runtimes", "targets"])  # looks for installed runtimes
def test_list_of_what_runs_here(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = conforming("list", printed(capsys, "list", what))
    assert len(names) == len(set(names)) > 0


@pytest.mark.parametrize("name", ["lpsnet-s", "fasterseg-teacher", "pidnet-s"])
def test_show(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = conforming("show", printed(capsys, "show", name, "--image", "1024x2048", "--classes", "19"))
    assert found["macs"] == segtailor.count(name, image=(1024, 2048), classes=19).macs


def test_data_check_and_show(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert conforming("data check", printed(capsys, "data", "check", TINY))["ok"]
    assert not conforming("data check", printed(capsys, "data", "check", f"folder:{tmp_path}", code=1))["ok"]
    conforming("data show", printed(capsys, "data", "show", TINY, "--dry-run"))


def test_eval(bundle: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("eval", bundle, "--data", TINY, "--cache", tmp_path, "--device", "cpu")
    assert conforming("eval", printed(capsys, *words))["images"] == 2


def test_bench(bundle: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("bench", bundle, "--target", "cpu/eager/fp32?threads=1", "--image", "32x64", "--seconds", "0.01")
    found = conforming("bench", printed(capsys, *words, "--budget", "60000ms"))
    assert (found["met"], found["budget_ms"]) == (True, 60000)


def test_predict(bundle: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    Image.new("RGB", (48, 40)).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_text("no picture")
    out = printed(
        capsys, "predict", bundle, tmp_path / "a.png", tmp_path / "b.png", "--out", tmp_path / "o", code=1
    )
    found = conforming("predict", out)
    assert (len(found["results"]), len(found["failures"])) == (1, 1)


@pytest.mark.slow
def test_train_resume_and_report(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    where = ("--cache", tmp_path / "cache", "--device", "cpu")
    small = ("--set", "fit.steps=1", "--batch", "2", "--crop", "32x64")
    words = ("train", "lpsnet-step0", "--data", TINY, "--out", tmp_path / "run", *small, *where)
    trained = conforming("train", printed(capsys, *words))
    assert conforming("resume", printed(capsys, "resume", tmp_path / "run", *where)) == trained
    assert Path(conforming("report", printed(capsys, "report", tmp_path / "run"))["report"]).is_file()


def test_import_and_serve_say_what_they_would_do(bundle: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("import", "weights.pth", "--as", "squeezenas-mac-small", "--out", "new", "--dry-run")
    assert conforming("import", printed(capsys, *words))
    assert conforming("serve", printed(capsys, "serve", bundle, "--port", "0", "--dry-run"))
    assert not Path("new").exists()


@pytest.mark.slow
def test_export(bundle: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = conforming("export", printed(capsys, "export", bundle, "--image", "32x64", "--out", tmp_path))
    assert all(Path(file).is_file() for file in (*found["files"], found["verify"]))


@pytest.mark.slow
def test_search(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    small = ("--set", "evaluator.fit.steps=1", "evaluator.fit.batch=2", "evaluator.reparameterise=false")
    words = ("search", "lpsnet", "--data", TINY, "--out", tmp_path / "run", "--cache", tmp_path / "cache")
    found = conforming("search", printed(capsys, *words, "--device", "cpu", "--steps", "1", *small))
    assert Path(found["architecture"]).is_file()


@pytest.mark.slow
def test_calibrate(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    what = ("--space", "inverted_residual", "--target", "cpu/eager/fp32?threads=1", "--image", "32x64")
    words = ("calibrate", *what, "--minutes", "0.02", "--networks", "2", "--out", tmp_path / "pack.json")
    assert Path(conforming("calibrate", printed(capsys, *words))["pack"]).is_file()


@pytest.mark.slow
def test_the_plan_of_tailor(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("tailor", "--out", tmp_path / "run", "--cache", tmp_path, "--dry-run")
    assert all(choice["reason"] for choice in conforming("plan", printed(capsys, *words))["choices"])
    assert not (tmp_path / "run").exists()

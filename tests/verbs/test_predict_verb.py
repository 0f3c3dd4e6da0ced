"""`segtailor predict` and `serve` from the command line."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import segtailor
from segtailor.verbs.main import run
from tests.predicting.models import halves, save_small_bundle


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_bundle(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("a.png", "b.jpg"):
        Image.fromarray(halves(33, 47)).save(folder / name)
    return folder


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = run([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_predict_writes_one_png_per_picture_that_holds_what_the_model_says(
    bundle: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    code, text, _ = call(capsys, "predict", bundle, photos, "--out", out, "--json")
    facts = json.loads(text)
    assert (code, facts["failures"], facts["frames"], facts["as"]) == (0, [], 2, "colour")
    assert facts["fps"] == pytest.approx(2 / facts["seconds"])
    assert sorted(path.name for path in out.iterdir()) == ["a.png", "b.png"]
    for row in facts["results"]:
        assert (row["height"], row["width"], row["frames"]) == (33, 47, 1)
        assert sum(row["shares"].values()) == pytest.approx(1)
        with Image.open(row["input"]) as picture:
            labels = segtailor.load(bundle).predict(picture)
        np.testing.assert_array_equal(np.asarray(Image.open(row["output"])), labels)


def test_predict_reports_failures_does_the_rest_and_ends_with_1(
    bundle: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "text.jpg").write_text("I am no picture")
    words = ["predict", bundle, photos, photos / "none.png", "9999", "--out", tmp_path / "out"]
    code, text, errors = call(capsys, *words)
    assert code == 1
    assert "wrote 2 results" in text
    assert "3 failed" in text
    for says in ("text.jpg cannot be read", "none.png does not exist", "camera 9999"):
        assert says in errors
    code, text, _ = call(capsys, *words, "--json")
    facts = json.loads(text)
    assert code == 1
    assert len(facts["results"]) == 2
    assert [Path(row["input"]).name for row in facts["failures"]] == ["none.png", "text.jpg", "camera 9999"]


def test_predict_dry_run_writes_nothing(
    bundle: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    code, text, _ = call(capsys, "predict", bundle, photos, "--out", out, "--dry-run", "--json")
    assert code == 0
    assert [row["output"] for row in json.loads(text)["results"]] == [str(out / "a.png"), str(out / "b.png")]
    assert not out.exists()
    code, text, _ = call(capsys, "predict", bundle, photos / "none.png", "--out", out, "--dry-run")
    assert code == 1
    assert "does not exist" in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["{bundle}"], "nothing to label"),
        (["{bundle}", "{photos}", "--as", "cake"], "cake"),
        (["{bundle}", "{photos}", "--opacity", "2"], "opacity"),
        (["{bundle}", "{photos}", "--size", "big"], "HEIGHTxWIDTH"),
        (["{bundle}", "{photos}", "--size", "30000x30000"], "too much memory"),
        (["{bundle}", "{photos}", "--frames", "0"], "frames"),
        (["{bundle}", "{photos}/a.png", "--out", "{photos}"], "would replace an input"),
        (["{bundle}", "{photos}/a.png", "--out", "{photos}/b.jpg"], "is a file"),
        (["{photos}/nothing", "{photos}"], "nothing"),
        (["{photos}/bad.onnx", "{photos}/a.png"], "bad.onnx"),
        (["{photos}", "{photos}/a.png"], "no bundle"),
    ],
)
def test_predict_explains_what_cannot_work(
    bundle: Path,
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    says: str,
) -> None:
    (photos / "bad.onnx").write_bytes(b"not a graph")
    filled = [word.format(bundle=bundle, photos=photos) for word in words]
    out = [] if "--out" in filled else ["--out", str(tmp_path / "out")]
    code, _, errors = call(capsys, "predict", *filled, *out)
    assert code == 1
    assert says in errors
    assert "Traceback" not in errors


def test_serve_dry_run_names_the_address_and_what_runs(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, errors = call(capsys, "serve", bundle, "--port", "0", "--dry-run", "--json")
    facts = json.loads(text)
    assert code == 0
    assert facts["url"].startswith("http://127.0.0.1:")
    assert (facts["model"], facts["runtime"]) == ("small", "PyTorch, not exported")
    assert "segtailor export" in errors
    _, _, errors = call(capsys, "serve", bundle, "--port", "0", "--host", "0.0.0.0", "--dry-run")
    assert "everyone who can reach 0.0.0.0" in errors


def test_serve_explains_a_taken_port(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, _, errors = call(capsys, "serve", bundle, "--port", taken.getsockname()[1], "--dry-run")
    assert code == 1
    assert "is taken" in errors


@pytest.mark.slow
@pytest.mark.usefixtures("signals_heard")
@pytest.mark.parametrize("exported", [False, True])
def test_serve_answers_until_it_is_interrupted(tmp_path: Path, exported: bool) -> None:
    bundle = save_small_bundle(tmp_path / "small")
    if exported:
        assert run(["export", str(bundle), "--to", "onnx", "--image", "64x64", "--dynamic"]) == 0
    words = [sys.executable, "-m", "segtailor", "serve", str(bundle), "--port", "0", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        assert process.stdout is not None
        lines = ""
        while not lines.rstrip().endswith("}"):
            lines += process.stdout.readline()
        facts = json.loads(lines)
        assert facts["runtime"] == ("ONNX Runtime" if exported else "PyTorch, not exported")
        Image.fromarray(halves()).save(tmp_path / "a.png")
        request = urllib.request.Request(facts["url"] + "segment", data=(tmp_path / "a.png").read_bytes())
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert sum(json.load(answer)["shares"]) == pytest.approx(1)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0

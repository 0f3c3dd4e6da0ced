"""The verb `calibrate`: flags, exit codes, JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from segtailor.costs.pack import read_pack
from segtailor.verbs.main import run

WHAT = ["calibrate", "--space", "inverted_residual", "--image", "32x64", "--classes", "4"]
TARGET = ["--target", "cpu/onnxruntime/fp32?threads=1"]
EAGER = ["--target", "cpu/eager/fp32?threads=1"]  # needs no export


def test_a_dry_run_says_where_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([*WHAT, *TARGET, "--dry-run", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["pack"] == "inverted_residual-32x64-cpu-onnxruntime-fp32-threads-1.json"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["calibrate"], "needs --space, --target and --image"),
        (["calibrate", "--space", "nonsense", *TARGET, "--image", "32x64"], "no space is called"),
        ([*WHAT, "--target", "cpu/onnxruntime/fp32?threads=0"], "threads=0"),
        ([*WHAT, "--target", "cpu/onnx/fp32"], "no runtime is called"),
        ([*WHAT, "--target", "abacus"], "device/runtime/precision"),
        ([*WHAT, *TARGET, "--minutes", "-1"], "--minutes: -1 is out of range"),
        ([*WHAT, *TARGET, "--networks", "1"], "at least 2"),
        (
            ["calibrate", "--space", "inverted_residual", *TARGET, "--image", "99999x99999"],
            "larger than any picture",
        ),
        (["calibrate", "--space", "inverted_residual", *TARGET, "--image", "0x64"], "HEIGHTxWIDTH"),
        (["calibrate", "--import", "none.json"], "does not exist"),
        ([*WHAT, *TARGET, "--set", "encoder=resnet50"], "there is no 'encoder'"),
    ],
)
def test_mistakes_are_explained_and_leave_no_pack(
    flags: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([*flags, "--out", "pack.json"]) == 1
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--target", "cpu/onnxruntime/int8"], "Calibrate cpu/onnxruntime/fp32"),
        (
            ["--target", "cuda/eager/int8", "--bundle", "board.zip"],
            "a bundle is timed by ONNX Runtime on the CPU",
        ),
        ([*TARGET, "--networks", "1"], "at least 2"),
    ],
)
def test_a_dry_run_refuses_in_the_words_of_the_calibration(
    flags: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    told = []
    for further in ([], ["--dry-run"]):
        assert run([*WHAT, *flags, *further]) == 1
        told.append(capsys.readouterr().err)
    assert message in told[0]
    assert told[0] == told[1]
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_calibrating_twice_reads_the_first_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "pack.json"
    command = [*WHAT, *EAGER, "--minutes", "0.01", "--networks", "2", "--out", str(out), "--json"]
    assert run(command) == 0
    first = json.loads(capsys.readouterr().out)
    assert {"pack", "entries", "pearson", "spearman", "mape"} <= set(first)
    assert len(read_pack(out).entries) == first["entries"] > 100
    assert out.with_suffix(".svg").exists()
    assert run(command) == 0
    assert json.loads(capsys.readouterr().out) == first

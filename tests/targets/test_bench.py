"""`segtailor bench`: from names and files to a table of measured times."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import segtailor
from segtailor.core.errors import UserError
from segtailor.core.plan import Shape
from segtailor.core.space import architecture_document
from segtailor.core.task import Task
from segtailor.deploy.export import export_onnx
from segtailor.nets.bundle import Model, save_bundle
from segtailor.targets.benchmark import check_memory, read_onnx
from segtailor.targets.timing import TimingSettings
from segtailor.verbs.main import run

EAGER = "cpu/eager/fp32?threads=1"
QUICK = TimingSettings(runs=5, seconds=0.02, warm_up_seconds=0.01, warm_up_limit=0.2, window=2)
NETWORK = "lpsnet-step0"
SIZE = (32, 64)


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    code = run(["bench", *argv, "--seconds", "0.02", "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out)


def test_one_network_on_one_target_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, NETWORK, "--target", EAGER, "--image", "32x64")
    assert {"median_ms", "p95_ms", "fps", "runs", "target", "includes"} <= found.keys()
    assert found["target"] == EAGER
    assert found["includes"] == "network"
    assert found["inputs"] == [[3, 32, 64]]
    assert found["runs"] >= 50
    assert 0 < found["min_ms"] <= found["median_ms"] <= found["p95_ms"]


@pytest.mark.slow
def test_several_are_a_list_in_the_order_given(capsys: pytest.CaptureFixture[str]) -> None:
    other = EAGER + "&channels_last=0"
    found = printed(capsys, NETWORK, "lpsnet-step1", "--target", EAGER, "--target", other, "--image", "32x64")
    assert [(row["network"], row["target"].count("last")) for row in found] == [
        (NETWORK, 0),
        (NETWORK, 1),
        ("lpsnet-step1", 0),
        ("lpsnet-step1", 1),
    ]


def test_a_table_is_printed_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", NETWORK, "--target", EAGER, "--image", "32x64", "--seconds", "0.02"]) == 0
    out = capsys.readouterr().out
    assert NETWORK in out
    assert "median ms" in out
    assert "network at 32x64, batch 1" in out


def test_a_missed_budget_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["bench", NETWORK, "--target", EAGER, "--image", "32x64", "--seconds", "0.02", "--json"]
    assert run([*argv, "--budget", "0.0001ms"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["met"] is False
    assert "missed" in captured.err
    assert run([*argv, "--budget", "0.01fps"]) == 0
    assert json.loads(capsys.readouterr().out)["met"] is True


@pytest.mark.parametrize("includes", ["network", "network+argmax", "network+resize+argmax", "end-to-end"])
def test_what_is_included_is_stated(includes: Any) -> None:
    (row,) = segtailor.bench([NETWORK], [EAGER], image=SIZE, includes=includes, settings=QUICK)
    assert row.includes == includes


def test_bundles_and_architecture_files_are_timed(tmp_path: Path) -> None:
    network = segtailor.create(NETWORK, classes=3)
    save_bundle(tmp_path / "mine", Model(network=network, task=Task(classes=("a", "b", "c"))))
    file = tmp_path / "arch.json"
    file.write_text(json.dumps(architecture_document(network.architecture)))
    rows = segtailor.bench([tmp_path / "mine", str(file), network], [EAGER], image=SIZE, settings=QUICK)
    assert [row.network for row in rows] == ["mine", str(file), "scalable_path"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "includes",
    [
        "network+resize+argmax",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("network", "network+argmax", "end-to-end")),
    ],
)
def test_an_onnx_file_says_itself_what_it_includes(includes: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    file = tmp_path / "model.onnx"
    export_onnx(segtailor.create(NETWORK, classes=3), file, image=SIZE, includes=includes)
    subject = read_onnx(file)
    assert subject.includes == includes
    assert subject.inputs == (Shape(3, *SIZE),)
    (row,) = segtailor.bench([file], ["cpu/onnxruntime/fp32?threads=1"], settings=QUICK)
    assert (row.includes, row.network) == (includes, "model.onnx")
    with pytest.raises(UserError, match="cannot run an ONNX file"):
        segtailor.bench([file], [EAGER], settings=QUICK)
    with pytest.raises(UserError, match="export it again"):
        segtailor.bench([file], ["cpu/onnxruntime/fp32"], image=(64, 64), settings=QUICK)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "at least one network"),
        (["lpsnet-z"], "did you mean"),
        ([NETWORK, "--target", "cpu/egaer/fp32"], "did you mean 'eager'"),
        ([NETWORK, "--target", "cpu"], "device/runtime/precision"),
        ([NETWORK, "--target", "cpu/eager/fp32?threads=0"], "out of range"),
        ([NETWORK, "--target", "cpu/eager/int8"], "int8"),
        ([NETWORK, "--target", EAGER, "--image", "100000x100000"], "100000x100000"),
        (
            [NETWORK, "--target", EAGER, "--image", "99999x99999"],
            "size '99999x99999' is larger than any picture",
        ),
        ([NETWORK, "--target", EAGER, "--image", "32768x32768"], "32768x32768"),
        ([NETWORK, "--target", EAGER, "--image", "0x64"], "0x64"),
        ([NETWORK, "--target", EAGER, "--budget", "fast"], "12ms or 60fps"),
        ([NETWORK, "--target", EAGER, "--classes", "-1"], "classes"),
        (["missing.onnx"], "does not exist"),
    ],
)
def test_bad_input_is_a_message_and_exit_code_1(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", *argv, "--json"]) == 1
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.out == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_target_without_a_gpu_is_refused_by_the_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", NETWORK, "--target", "cuda/graph/fp16"]) == 1
    assert "no CUDA device" in capsys.readouterr().err


def test_a_size_beyond_the_memory_is_refused() -> None:
    from segtailor.spaces.networks import expand

    check_memory(expand(NETWORK, image=SIZE))
    with pytest.raises(UserError, match="GiB"):
        check_memory(expand("fasterseg-teacher", image=(2**15, 2**15)))


def test_runtimes_and_targets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "runtimes", "--json"]) == 0
    assert {"eager", "graph", "onnxruntime", "openvino"} <= set(json.loads(capsys.readouterr().out))
    assert run(["list", "targets", "--json"]) == 0
    assert "cuda/graph/fp16" in json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_a_file_of_open_size_is_timed_at_the_size_asked_for(tmp_path: Path) -> None:
    model = Model(network=segtailor.create(NETWORK, classes=3), task=Task(classes=("a", "b", "c")))
    file = segtailor.export(model, image=(64, 96), dynamic=True, output="labels", out=tmp_path).files[0]
    with pytest.raises(UserError, match="--image"):
        read_onnx(file)
    subject = read_onnx(file, image=(48, 64))
    assert subject.inputs[0][1:] == (48, 64)
    assert subject.includes == "network+resize+argmax"

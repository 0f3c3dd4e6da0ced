"""TensorRT by its command trtexec; a script that writes files of the same form takes its place."""

import stat
from pathlib import Path

import pytest
from torch import nn

import segtailor
from segtailor.core.errors import Unsupported
from segtailor.core.plan import Shape
from segtailor.core.target import parse_target
from segtailor.targets.onnx import graph_of
from segtailor.targets.runtime import compile_network, runtime_for
from segtailor.targets.tensorrt import check_graph_precision
from segtailor.targets.timing import TimingSettings, stopwatch, time_all

TARGET = parse_target("cuda/tensorrt/fp16")
STAND_IN = """#!/bin/sh
built= typed=
for word in "$@"; do case "$word" in
  --fp16) exit 5 ;;
  --stronglyTyped) typed=1 ;;
  --onnx=*) test -s "${word#--onnx=}" || exit 3 ;;
  --saveEngine=*) built=1; echo engine > "${word#--saveEngine=}" ;;
  --loadEngine=*) test -s "${word#--loadEngine=}" || exit 4 ;;
  --exportTimes=*) echo '[{"computeMs": 2.0}, {"computeMs": 3.0}, {"computeMs": 4.0}]' > "${word#--exportTimes=}" ;;
esac; done
test "$built" = "$typed" || exit 6
"""  # version 11 knows no --fp16, version 10 needs --stronglyTyped to take precisions from the graph


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "bin" / "trtexec"
    file.parent.mkdir()
    file.write_text(STAND_IN)
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{file.parent}:/usr/bin:/bin")
    return file


def test_the_command_builds_and_times_an_engine(command: Path) -> None:
    compiled = compile_network(segtailor.create("lpsnet-step0"), TARGET, (Shape(3, 32, 32),))
    settings = TimingSettings(runs=6, seconds=0.0, warm_up_seconds=0.0, warm_up_limit=0.1)
    (samples,) = time_all([stopwatch(compiled, "cuda")], settings)
    assert 0.002 <= samples.median <= 0.004
    with pytest.raises(Unsupported, match="only measures time"):
        compiled.outputs()
    compiled.close()


@pytest.mark.slow
def test_a_failing_command_is_explained(command: Path) -> None:
    command.write_text("#!/bin/sh\necho 'no such device' >&2\nexit 1\n")
    with pytest.raises(Unsupported, match="code 1: no such device"):
        compile_network(segtailor.create("lpsnet-step0"), TARGET, (Shape(3, 32, 32),))


@pytest.mark.slow
def test_times_that_cannot_be_read_are_explained(command: Path) -> None:
    command.write_text(STAND_IN.replace("computeMs", "other"))
    compiled = compile_network(segtailor.create("lpsnet-step0"), TARGET, (Shape(3, 32, 32),))
    with pytest.raises(Unsupported, match="no times that can be read"):
        compiled.run()


def test_without_command_and_package_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unsupported, match="cannot be used here"):
        runtime_for(TARGET)


@pytest.mark.parametrize(("inside", "asked"), [("fp32", "fp16"), ("fp16", "fp32")])
def test_a_graph_of_another_precision_than_its_target_is_refused(inside: str, asked: str) -> None:
    network = nn.Conv2d(3, 4, 3)
    graphs = {
        name: graph_of(network, parse_target(f"cuda/tensorrt/{name}"), (Shape(3, 32, 32),), pixels=False)
        for name in {inside, asked}
    }
    check_graph_precision(graphs[asked], parse_target(f"cuda/tensorrt/{asked}"))
    with pytest.raises(Unsupported, match=f"computes in {inside}.*--precision {asked}"):
        check_graph_precision(graphs[inside], parse_target(f"cuda/tensorrt/{asked}"))

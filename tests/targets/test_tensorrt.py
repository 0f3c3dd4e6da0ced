"""TensorRT by its command trtexec, of versions 10 and 11; a script stands in for it.

The script knows the options of the recorded help texts and writes the recorded layers (tests/fixtures/trtexec).
"""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from segtailor.core.errors import Unsupported
from segtailor.core.plan import Shape
from segtailor.core.target import parse_target
from segtailor.targets.onnx import graph_of
from segtailor.targets.runtime import Compiled, runtime_for
from segtailor.targets.tensorrt import check_engine_precision, check_graph_precision, version_of
from segtailor.targets.timing import TimingSettings, stopwatch, time_all

RECORDED = Path(__file__).parents[1] / "fixtures" / "trtexec"
TARGET = parse_target("cuda/tensorrt/fp32")
STAND_IN = """#!/bin/sh
for word in "$@"; do
  grep -q -e "^  ${word%%=*}[ =<]" HELP || { echo "[E] Unknown option: $word" >&2; exit 1; }
  case "$word" in
    --stronglyTyped) typed=1 ;;
    --onnx=*) test -s "${word#--onnx=}" || exit 3 ;;
    --saveEngine=*) built=1; echo engine > "${word#--saveEngine=}" ;;
    --loadEngine=*) test -s "${word#--loadEngine=}" || exit 4 ;;
    --exportLayerInfo=*) cp LAYERS "${word#--exportLayerInfo=}" ;;
    --exportTimes=*) cp TIMES "${word#--exportTimes=}" ;;
  esac
done
test "$built" = "$typed" || exit 6
cat LOG
"""  # version 10 takes precisions from the graph only with --stronglyTyped
TIMES = """[
  { "startEnqMs" : 200.1, "endEnqMs" : 200.2, "startH2dMs" : 200.1, "endH2dMs" : 200.1, "startComputeMs" : 200.2, "endComputeMs" : 202.2, "startD2hMs" : 202.2, "endD2hMs" : 202.2, "h2dMs" : 0, "computeMs" : 2, "d2hMs" : 0, "latencyMs" : 2 }
, { "startEnqMs" : 202.3, "endEnqMs" : 202.4, "startH2dMs" : 202.3, "endH2dMs" : 202.3, "startComputeMs" : 202.4, "endComputeMs" : 206.4, "startD2hMs" : 206.4, "endD2hMs" : 206.4, "h2dMs" : 0, "computeMs" : 4, "d2hMs" : 0, "latencyMs" : 4 }
]
"""  # noqa: E501 - the form of exportJSONTrace; the values are made up
VERSIONS = {
    "10": ("help_10_6.txt", "layers_10_14.json", "build_10_16.txt", "10.16.0"),
    "11": ("help_11_0.txt", "layers_11_0.json", "build_11_0.txt", "11.0.0"),
}


def stand_in(version: str, folder: Path, *, layers: str | None = None, times: str = TIMES) -> str:
    help_, recorded, log, _ = VERSIONS[version]
    (folder / "times.json").write_text(times)
    (folder / "layers.json").write_text(layers or (RECORDED / recorded).read_text())
    text = STAND_IN.replace("HELP", str(RECORDED / help_)).replace("LOG", str(RECORDED / log))
    return text.replace("LAYERS", str(folder / "layers.json")).replace("TIMES", str(folder / "times.json"))


@pytest.fixture(scope="module")
def graphs() -> dict[str, bytes]:
    network, shapes = nn.Conv2d(3, 4, 3), (Shape(3, 32, 32),)
    names = ("fp32", "fp16")
    return {
        name: graph_of(network, parse_target(f"cuda/tensorrt/{name}"), shapes, pixels=False) for name in names
    }


def built(graphs: dict[str, bytes], precision: str) -> Compiled:
    target = parse_target(f"cuda/tensorrt/{precision}")
    compiled: Compiled = runtime_for(target).compile_onnx(graphs[precision], target, ())  # type: ignore[attr-defined]
    return compiled


def in_half(layers: str) -> str:
    """Write `Half` over the types of recorded layers: no engine in half precision was recorded."""
    return layers.replace('"Float"', '"Half"')


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "bin" / "trtexec"
    file.parent.mkdir()
    file.write_text(stand_in("11", tmp_path))
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{file.parent}:/usr/bin:/bin")
    return file


@pytest.mark.parametrize("version", VERSIONS)
def test_the_command_of_both_versions_builds_and_times_an_engine(
    version: str, command: Path, tmp_path: Path, graphs: dict[str, bytes]
) -> None:
    command.write_text(stand_in(version, tmp_path))
    compiled = built(graphs, "fp32")
    assert compiled.notes == (f"timed by trtexec of TensorRT {VERSIONS[version][3]}",)
    settings = TimingSettings(runs=6, seconds=0.0, warm_up_seconds=0.0, warm_up_limit=0.1)
    (samples,) = time_all([stopwatch(compiled, "cuda")], settings)
    assert 0.002 <= samples.median <= 0.004
    with pytest.raises(Unsupported, match="only measures time"):
        compiled.outputs()
    compiled.close()


@pytest.mark.parametrize(("version", "knows"), [("10", True), ("11", False)])
def test_version_11_has_no_precision_flags(version: str, knows: bool) -> None:
    text = (RECORDED / VERSIONS[version][0]).read_text()
    assert ("  --fp16 " in text) is knows
    assert "  --stronglyTyped " in text  # so that one command line serves both


@pytest.mark.parametrize("version", VERSIONS)
def test_an_engine_of_another_precision_is_refused(
    version: str, command: Path, tmp_path: Path, graphs: dict[str, bytes]
) -> None:
    half = in_half((RECORDED / VERSIONS[version][1]).read_text())
    command.write_text(stand_in(version, tmp_path, layers=half))
    with pytest.raises(Unsupported, match="computes in fp16, not in fp32"):
        built(graphs, "fp32")
    command.write_text(stand_in(version, tmp_path))
    with pytest.raises(Unsupported, match="computes in fp32, not in fp16"):
        built(graphs, "fp16")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_precision_of_an_engine_is_that_of_its_recorded_layers(version: str) -> None:
    recorded = (RECORDED / VERSIONS[version][1]).read_text()
    check_engine_precision(json.loads(recorded), "fp32")
    check_engine_precision(json.loads(in_half(recorded)), "fp16")
    with pytest.raises(Unsupported, match="computes in fp16"):
        check_engine_precision(json.loads(recorded.replace('"Float"', '"Half"', 1)), "fp32")


@pytest.mark.parametrize("told", [{}, [], {"Layers": ["node_conv2d", "node_relu"]}])
def test_layers_without_types_are_refused(told: Any) -> None:
    with pytest.raises(Unsupported, match="does not tell"):
        check_engine_precision(told, "fp32")


def test_a_log_without_a_version_gives_none() -> None:
    assert version_of("&&&& RUNNING TensorRT.trtexec [TensorRT v8600]") is None


def test_a_failing_command_is_explained(command: Path, graphs: dict[str, bytes]) -> None:
    command.write_text("#!/bin/sh\necho 'no such device' >&2\nexit 1\n")
    with pytest.raises(Unsupported, match="code 1: no such device"):
        built(graphs, "fp32")


def test_times_that_cannot_be_read_are_explained(
    command: Path, tmp_path: Path, graphs: dict[str, bytes]
) -> None:
    command.write_text(stand_in("11", tmp_path, times=TIMES.replace("computeMs", "other")))
    compiled = built(graphs, "fp32")
    with pytest.raises(Unsupported, match="no times that can be read"):
        compiled.run()


def test_without_command_and_package_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unsupported, match="cannot be used here"):
        runtime_for(TARGET)


@pytest.mark.parametrize(("inside", "asked"), [("fp32", "fp16"), ("fp16", "fp32")])
def test_a_graph_of_another_precision_than_its_target_is_refused(
    inside: str, asked: str, graphs: dict[str, bytes]
) -> None:
    check_graph_precision(graphs[asked], parse_target(f"cuda/tensorrt/{asked}"))
    with pytest.raises(Unsupported, match=f"computes in {inside}.*--precision {asked}"):
        check_graph_precision(graphs[inside], parse_target(f"cuda/tensorrt/{asked}"))

"""Foreign ONNX files cannot take all time or memory: what cannot be estimated runs in a child with limits."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from segtailor.core.errors import UserError
from segtailor.nets.onnx.bounds import parse_graph, why_unbounded
from segtailor.nets.onnx.confined import ChildLimits, ConfinedSession, check_repeatable, foreign_session
from segtailor.nets.onnx.model import open_onnx_model
from segtailor.targets.benchmark import read_onnx

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - after the check that it is there

FEEDS = {"image": np.zeros((1, 3, 8, 8), dtype=np.float32)}
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def constant(name: str, values: Any, kind: Any = np.int64) -> Any:
    return numpy_helper.from_array(np.array(values, dtype=kind), name)


def written(
    file: Path,
    nodes: list[Any],
    weights: list[Any],
    size: tuple[Any, ...] = (1, 3, 8, 8),
    output: tuple[Any, ...] = (1, 3, 8, 8),
) -> Path:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("image", FLOAT, size)],
        [helper.make_tensor_value_info("output", FLOAT, output)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    file.write_bytes(model.SerializeToString())
    return file


def looping(file: Path, *, rounds: int) -> Path:
    """A loop that adds the image to itself a number of times."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["on"], ["still"]),
            helper.make_node("Add", ["sum", "image"], ["next"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("round", INT64, ()),
            helper.make_tensor_value_info("on", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("sum", FLOAT, (1, 3, 8, 8)),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("next", FLOAT, (1, 3, 8, 8)),
        ],
    )
    nodes = [helper.make_node("Loop", ["rounds", "yes", "image"], ["output"], body=body)]
    return written(file, nodes, [constant("rounds", rounds), constant("yes", True, np.bool_)])


def huge(file: Path, *, side: int = 2 * 10**5) -> Path:
    """A few hundred bytes that ask for 160 gigabytes; the sum is small again."""
    nodes = [
        helper.make_node("ConstantOfShape", ["sides"], ["field"], value=constant("", [1.0], np.float32)),
        helper.make_node("ReduceSum", ["field"], ["sum"], keepdims=0),
        helper.make_node("Add", ["image", "sum"], ["output"]),
    ]
    return written(file, nodes, [constant("sides", [side, side])])


def ordinary(file: Path, **sizes: Any) -> Path:
    weight = numpy_helper.from_array(np.ones((3, 3, 1, 1), dtype=np.float32), "weight")
    return written(file, [helper.make_node("Conv", ["image", "weight"], ["output"])], [weight], **sizes)


def test_ordinary_layers_run_in_this_process(tmp_path: Path) -> None:
    for sizes in ({}, {"size": (1, 3, "h", "w"), "output": (1, 3, "h", "w")}):
        session = foreign_session(ordinary(tmp_path / "model.onnx", **sizes))
        assert not isinstance(session, ConfinedSession)


def test_a_short_loop_gives_its_answer_from_a_child(tmp_path: Path) -> None:
    session = foreign_session(looping(tmp_path / "model.onnx", rounds=3))
    assert isinstance(session, ConfinedSession)
    image = np.random.default_rng(0).random((1, 3, 8, 8), dtype=np.float32)
    (output,) = session.run(None, {"image": image})
    np.testing.assert_allclose(output, 4 * image, rtol=1e-6)


def test_a_picture_is_predicted_by_a_file_with_a_loop(tmp_path: Path) -> None:
    model = open_onnx_model(looping(tmp_path / "model.onnx", rounds=3))
    assert model.predict(Image.new("RGB", (16, 16))).shape == (16, 16)


def test_an_endless_loop_is_ended_after_its_time(tmp_path: Path) -> None:
    limits = ChildLimits(seconds=2.0)
    session = foreign_session(looping(tmp_path / "model.onnx", rounds=2**62), limits=limits)
    start = time.monotonic()
    with pytest.raises(UserError, match=r"has Loop.*an input of 1x3x8x8 took more than 2 s") as told:
        session.run(None, FEEDS)
    assert time.monotonic() - start < 10
    assert "\n" not in str(told.value)


def test_after_a_child_was_ended_the_next_run_starts_another(tmp_path: Path) -> None:
    session = foreign_session(looping(tmp_path / "model.onnx", rounds=1))
    image = np.ones((1, 3, 8, 8), dtype=np.float32)
    session.run(None, {"image": image})
    os.kill(session._child.pid, signal.SIGKILL)
    with pytest.raises(UserError, match="crashed, or took more than"):
        session.run(None, {"image": image})
    assert np.array_equal(session.run(None, {"image": image})[0], 2 * image)


def test_a_graph_that_asks_for_too_much_memory_is_refused(tmp_path: Path) -> None:
    limits = ChildLimits(seconds=20, memory=2**30)
    with pytest.raises(UserError, match="GiB of feature maps, so it runs in a process with limits"):
        foreign_session(huge(tmp_path / "model.onnx"), limits=limits).run(None, FEEDS)


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ([("Resize", ["image", "", "", "sizes"])], "feature maps"),
        ([("Expand", ["image", "sizes"])], "feature maps"),
        ([("Tile", ["image", "sizes"])], "feature maps"),
        ([("NonZero", ["image"])], "operator 'NonZero'"),
        ([("Cast", ["image"]), ("ConstantOfShape", ["value0"])], "not known beforehand"),
    ],
)
def test_what_a_graph_costs_is_read_off_its_layers(tmp_path: Path, nodes: list[Any], why: str) -> None:
    made = []
    for index, (kind, inputs) in enumerate(nodes):
        output = "output" if index == len(nodes) - 1 else f"value{index}"
        made.append(helper.make_node(kind, inputs, [output], **({"to": INT64} if kind == "Cast" else {})))
    weights = [constant("sizes", [1, 3, 10**6, 10**6])]
    size = (1, 3, 1, 1) if nodes[0][0] == "Expand" else (1, 3, 8, 8)
    file = written(tmp_path / "model.onnx", made, weights, size=size, output=("a", "b", "c", "d"))
    assert why in str(why_unbounded(parse_graph(file.read_bytes(), what="it")))


def test_sizes_that_grow_faster_than_the_image_are_not_believed(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["image"], ["height"], start=2, end=3),
        helper.make_node("Mul", ["height", "height"], ["square"]),
        helper.make_node("Concat", ["square", "square"], ["sides"], axis=0),
        helper.make_node("ConstantOfShape", ["sides"], ["field"]),
        helper.make_node("ReduceSum", ["field"], ["sum"], keepdims=0),
        helper.make_node("Add", ["image", "sum"], ["output"]),
    ]
    open_size = (1, 3, "h", "w")
    file = written(tmp_path / "model.onnx", nodes, [], size=open_size, output=open_size)
    assert why_unbounded(parse_graph(file.read_bytes(), what="it")) == "grows faster than its image"


def test_what_the_file_claims_about_sizes_inside_is_not_believed(tmp_path: Path) -> None:
    file = huge(tmp_path / "model.onnx")
    model = parse_graph(file.read_bytes(), what="it")
    model.graph.value_info.append(helper.make_tensor_value_info("field", FLOAT, (1, 1)))
    assert why_unbounded(model) is not None


@pytest.mark.parametrize("place", ["/etc/hostname", "../secret", "a/../../secret", "C:\\secret"])
def test_weights_outside_the_folder_of_the_file_are_refused(tmp_path: Path, place: str) -> None:
    file = ordinary(tmp_path / "model.onnx")
    model = onnx.load(file)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=place)
    file.write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match="not below its own folder"):
        foreign_session(file)


def test_bench_refuses_loops_before_it_runs_them(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has Loop"):
        read_onnx(looping(tmp_path / "model.onnx", rounds=2**62))


def test_bench_tries_unknown_operators_once_in_a_child(tmp_path: Path) -> None:
    limits = ChildLimits(seconds=20, memory=2**30)
    file = written(tmp_path / "a.onnx", [helper.make_node("Hardmax", ["image"], ["output"])], [])
    assert read_onnx(file).inputs == ((3, 8, 8),)
    with pytest.raises(UserError, match="process with limits"):
        check_repeatable(huge(tmp_path / "b.onnx").read_bytes(), lambda _: FEEDS, what="it", limits=limits)


@pytest.mark.slow
@pytest.mark.usefixtures("signals_heard")
def test_ctrl_c_ends_a_prediction_in_an_endless_loop(tmp_path: Path) -> None:
    looping(tmp_path / "model.onnx", rounds=2**62)
    Image.new("RGB", (16, 16)).save(tmp_path / "a.png")
    command = [sys.executable, "-m", "segtailor", "predict", "model.onnx", "a.png", "--out", "found"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, start_new_session=True)
    try:
        time.sleep(6)  # importing takes up to three seconds, and the loop would run for a minute
        assert process.poll() is None
        for _ in range(2):  # the first asks to finish the picture, the second ends at once
            process.send_signal(signal.SIGINT)
            time.sleep(0.5)
        _, told = process.communicate(timeout=10)
    finally:
        process.kill()
    assert process.returncode == 130, told
    assert b"Traceback" not in told

"""An int8 graph computes nearly what its fp32 graph computes, and is quantised where it should be and nowhere else."""

import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from segtailor.core.errors import UserError
from segtailor.nets.onnx.graph import onnx_session
from segtailor.nets.onnx.int8 import int8_onnx, is_quantised, last_nodes, read_model

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

SIZE = (1, 3, 8, 12)


def graph(*, labels: bool = False) -> bytes:
    """Two convolutions, and an arg max on request."""
    helper, rng = onnx.helper, np.random.default_rng(0)
    weights = [
        onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in (("w1", (6, 3, 3, 3)), ("b1", (6,)), ("w2", (4, 6, 1, 1)), ("b2", (4,)))
    ]
    nodes = [
        helper.make_node("Conv", ["image", "w1", "b1"], ["a"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("Conv", ["b", "w2", "b2"], ["logits"], "second"),
        helper.make_node("ArgMax", ["logits"], ["labels"], "argmax", axis=1, keepdims=0),
    ]
    kinds = onnx.TensorProto
    output = ("labels", kinds.INT64, (1, 8, 12)) if labels else ("logits", kinds.FLOAT, (1, 4, 8, 12))
    made = helper.make_graph(
        nodes if labels else nodes[:3],
        "tiny",
        [helper.make_tensor_value_info("image", kinds.FLOAT, SIZE)],
        [helper.make_tensor_value_info(*output)],
        weights,
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    entry = model.metadata_props.add()
    entry.key, entry.value = "classes", '["road", "car"]'
    data: bytes = model.SerializeToString()
    return data


def feeds(count: int = 3) -> Iterator[dict[str, Any]]:
    for seed in range(count):
        yield {"image": np.random.default_rng(seed).standard_normal(SIZE).astype(np.float32)}


def run(data: bytes, feed: dict[str, Any]) -> Any:
    return onnx_session(data).run(None, feed)[0]


def test_int8_logits_are_near_those_of_fp32() -> None:
    data = graph()
    quantised = int8_onnx(data, feeds())
    for feed in feeds():
        wanted, found = run(data, feed), run(quantised, feed)
        assert 0 < np.abs(found - wanted).mean() < 0.01 * np.abs(wanted).max()


def test_weights_are_signed_bytes_with_one_scale_per_channel() -> None:
    model = read_model(int8_onnx(graph(), feeds()))
    weights = {each.name: each for each in model.graph.initializer}
    first = next(value for name, value in weights.items() if "w1" in name and name.endswith("quantized"))
    scale = next(value for name, value in weights.items() if "w1" in name and name.endswith("scale"))
    assert first.data_type == onnx.TensorProto.INT8
    assert list(scale.dims) == [6]


def test_the_last_convolution_and_what_follows_it_stay_in_fp32() -> None:
    assert last_nodes(read_model(graph(labels=True))) == ["argmax", "second"]
    model = read_model(int8_onnx(graph(labels=True), feeds()))
    (argmax,) = (node for node in model.graph.node if node.op_type == "ArgMax")
    makers = {output: node for node in model.graph.node for output in node.output}
    last = makers[argmax.input[0]]
    assert last.op_type == "Conv"
    assert last.input[1] == "w2"  # the weights themselves
    first = next(node for node in model.graph.node if node.op_type == "Conv" and node is not last)
    assert [makers[name].op_type for name in first.input[:2]] == ["DequantizeLinear"] * 2


def test_one_odd_picture_hardly_widens_the_ranges() -> None:
    usual = list(feeds(9))
    odd = {"image": 20 * usual[0]["image"]}
    model = read_model(int8_onnx(graph(), [*usual, odd]))
    scales = {each.name: each for each in model.graph.initializer}
    scale = float(onnx.numpy_helper.to_array(scales["image_scale"]))
    widths = [float(np.ptp(feed["image"])) for feed in (*usual, odd)]
    assert scale == pytest.approx(np.mean(widths) / 255, rel=0.01)
    assert scale < 0.2 * max(widths) / 255


def test_names_and_metadata_are_those_of_the_original() -> None:
    model = read_model(int8_onnx(graph(labels=True), feeds()))
    assert [each.name for each in model.graph.input] == ["image"]
    assert [each.name for each in model.graph.output] == ["labels"]
    assert {each.key: each.value for each in model.metadata_props} == {"classes": '["road", "car"]'}


def test_a_graph_without_weights_is_left_in_fp32() -> None:
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    ends = [helper.make_tensor_value_info(name, kind, SIZE) for name in ("image", "out")]
    nodes = [helper.make_node("Relu", ["image"], ["out"], "relu")]
    model = helper.make_model(
        helper.make_graph(nodes, "relu", ends[:1], ends[1:]), opset_imports=[helper.make_opsetid("", 18)]
    )
    model.ir_version = 10
    quantised = int8_onnx(model.SerializeToString(), feeds())
    assert Counter(node.op_type for node in read_model(quantised).graph.node) == {"Relu": 1}


def test_a_quantised_graph_is_not_quantised_again() -> None:
    quantised = int8_onnx(graph(), feeds())
    assert is_quantised(read_model(quantised))
    assert not is_quantised(read_model(graph()))
    with pytest.raises(UserError, match="quantised already"):
        int8_onnx(quantised, feeds())


@pytest.mark.parametrize("data", [b"", b"not an onnx file", bytes(1000), graph()[:200]])
def test_damaged_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(UserError, match="Export it again"):
        int8_onnx(data, feeds())


def test_no_inputs_to_measure_ranges_on_is_an_error() -> None:
    with pytest.raises(UserError, match="at least one image"):
        int8_onnx(graph(), [])


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime.quantization", None)
    with pytest.raises(UserError, match="pip install"):
        int8_onnx(graph(), feeds())

"""Operators as ONNX files: the same function, named so that a profiler tells what belongs where."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from segtailor.core.plan import OpCall, Shape
from segtailor.costs.board_runner import AFTER, BEFORE, machine
from segtailor.costs.operator_files import (
    ENTRY_CHANNELS,
    WrappedOperator,
    WrappedOperators,
    export_operators,
    level_weights,
)
from segtailor.ops import Concat, Conv, Identity, Resize, Sum
from segtailor.targets.machine import machine as full_machine

torch.set_num_threads(1)
FINE, COARSE = Shape(6, 8, 10), Shape(6, 4, 5)
CALLS = [
    OpCall(op=Conv(repeats=2), inputs=(FINE,), channels=5, stride=2),
    OpCall(op=Sum(), inputs=(FINE, FINE), channels=6),
    OpCall(op=Concat(), inputs=(FINE, FINE, FINE), channels=18),
    OpCall(op=Resize(align_corners=True), inputs=(COARSE, FINE._replace(channels=1)), channels=6),
    OpCall(op=Identity(), inputs=(FINE,), channels=6),
]


@pytest.fixture(scope="module")
def files() -> list[bytes]:
    return export_operators(CALLS)


def entries(call: OpCall) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(1, ENTRY_CHANNELS, shape.height, shape.width, generator=generator)
        for shape in call.inputs
    ]


@pytest.mark.slow
@pytest.mark.parametrize("index", range(len(CALLS)))
def test_a_file_computes_what_the_operator_computes(files: list[bytes], index: int) -> None:
    maps = entries(CALLS[index])
    session = onnxruntime.InferenceSession(files[index], providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    shapes = {value.name: tuple(value.shape) for value in session.get_inputs()}
    feeds = {name: maps[int(name.removeprefix("entry"))].numpy() for name in names}
    assert all(feeds[name].shape == shapes[name] for name in names)
    (found,) = session.run(None, feeds)
    with torch.no_grad():
        expected = WrappedOperator(CALLS[index]).eval()(*maps)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)


@pytest.mark.slow
def test_every_node_is_before_inside_or_after(files: list[bytes]) -> None:
    for call, data in zip(CALLS, files, strict=True):
        nodes = onnx.load_from_string(data).graph.node
        marks = [next(m for m in (BEFORE, AFTER, "inside_") if node.name.startswith(m)) for node in nodes]
        counted = sum(shape.channels > 1 for shape in call.inputs)  # a model for sizes alone is not read
        assert marks.count(BEFORE) == 2 * counted
        assert marks.count(AFTER) == 1
        assert ("inside_" in marks) == (not isinstance(call.op, Identity))


def test_levelled_kernels_keep_the_size_of_values() -> None:
    stack = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3), torch.nn.Conv2d(8, 2, 1))
    level_weights(stack)
    with torch.no_grad():
        out = stack(torch.full((1, 4, 5, 5), 3.0))
    assert torch.allclose(out, torch.full_like(out, 3.0))


def test_wrapped_operators_read_their_own_maps() -> None:
    calls = CALLS[:3]
    maps = [entry for call in calls for entry in entries(call)]
    with torch.no_grad():
        together = WrappedOperators(calls).eval()(*maps)
        alone = [WrappedOperator(call).eval()(*entries(call)) for call in calls]
    assert all(torch.equal(one, other) for one, other in zip(together, alone, strict=True))


def test_the_runner_describes_the_machine_as_we_do() -> None:
    ours = full_machine()
    theirs = machine()
    assert theirs["cpu"] == ours.cpu
    assert theirs["cores"] == ours.cores
    assert theirs["system"] == ours.system
    assert theirs["versions"]["onnxruntime"] == ours.versions["onnxruntime"]

"""Operators as ONNX files for timing: each between two small convolutions, exported many at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn, no_grad, randn

from segtailor.core.plan import OpCall
from segtailor.costs.board_runner import AFTER, BEFORE
from segtailor.deploy.fold import operator_form
from segtailor.nets.onnx.graph import onnx_bytes

if TYPE_CHECKING:
    import onnx

ENTRY_CHANNELS, EXIT_CHANNELS = 4, 8


class WrappedOperator(nn.Module):
    """One operator, in the form that a device runs, between small convolutions, which set the layout of its maps."""

    def __init__(self, call: OpCall) -> None:
        super().__init__()
        self.before = nn.ModuleList(
            nn.Sequential(nn.Conv2d(ENTRY_CHANNELS, shape.channels, 1), nn.ReLU()) for shape in call.inputs
        )
        self.operator = operator_form(call)
        self.after = nn.Conv2d(call.output().channels, EXIT_CHANNELS, 1)
        level_weights(self)

    def forward(self, *maps: Tensor) -> Tensor:
        """Run on one map per input of the operator."""
        sources = [before(entry) for before, entry in zip(self.before, maps, strict=True)]
        result: Tensor = self.after(self.operator(*sources))
        return result


class WrappedOperators(nn.Module):
    """Several wrapped operators in one module, so that one export is enough."""

    def __init__(self, calls: Sequence[OpCall]) -> None:
        super().__init__()
        self.operators = nn.ModuleList(WrappedOperator(call) for call in calls)
        self._input_counts = [len(call.inputs) for call in calls]

    def forward(self, *maps: Tensor) -> tuple[Tensor, ...]:
        """Run each on its own maps."""
        results, start = [], 0
        for operator, count in zip(self.operators, self._input_counts, strict=True):
            results.append(operator(*maps[start : start + count]))
            start += count
        return tuple(results)


def export_operators(calls: Sequence[OpCall]) -> list[bytes]:
    """Return one ONNX file per call; equal operators give equal bytes."""
    import onnx

    entries = [randn(1, ENTRY_CHANNELS, shape.height, shape.width) for call in calls for shape in call.inputs]
    names = [f"entry{index}" for index in range(len(entries))]
    model = onnx.load_from_string(
        onnx_bytes(WrappedOperators(calls).eval(), entries, names=names, output="first_output")
    )
    return [_with_plain_names(part).SerializeToString(deterministic=True) for part in split(model)]


def split(model: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    """Yield one model per output, with the nodes, inputs and weights that it needs."""
    from onnx import helper

    graph = model.graph
    makers = {name: index for index, node in enumerate(graph.node) for name in node.output}
    for output in graph.output:
        names: set[str] = set()
        stack = [output.name]
        while stack:
            name = stack.pop()
            if name not in names:
                names.add(name)
                stack.extend(graph.node[makers[name]].input if name in makers else ())
        nodes = [graph.node[index] for index in sorted({makers[name] for name in names if name in makers})]
        inputs = [value for value in graph.input if value.name in names]
        weights = [weight for weight in graph.initializer if weight.name in names]
        part = helper.make_graph(nodes, "operator", inputs, [output], weights)
        yield helper.make_model(part, opset_imports=model.opset_import, ir_version=model.ir_version)


def level_weights(module: nn.Module) -> None:
    """Set all weights of a kernel to the same small value: times do not depend on values, and files compress well."""
    with no_grad():
        for part in module.modules():
            if isinstance(part, nn.Conv2d):
                part.weight.fill_(1 / part.weight[0].numel())
                if part.bias is not None:
                    part.bias.zero_()


def _with_plain_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """Name nodes and values by position: profilers report these names, whatever the runtime fuses."""
    graph = model.graph
    last = graph.output[0].name
    neighbours = {value.name for value in graph.input}
    names = {value.name: f"entry{index}" for index, value in enumerate(graph.input)}
    names |= {weight.name: f"weight{index}" for index, weight in enumerate(graph.initializer)}
    for index, node in enumerate(graph.node):
        prefix = "inside_"
        if node.output[0] == last:
            prefix = AFTER
        elif node.input and node.input[0] in neighbours:
            prefix = BEFORE
            if node.op_type == "Conv":  # its activation belongs to the neighbour as well
                neighbours.add(node.output[0])
        names |= {name: f"{prefix}{index}_{position}" for position, name in enumerate(node.output) if name}
        node.name = f"{prefix}{index}"
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        node.doc_string = ""
        del node.metadata_props[:]
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = names.get(value.name, value.name)
        del value.metadata_props[:]
    del graph.value_info[:]
    return model

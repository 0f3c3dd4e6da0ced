"""Operators as ONNX files that can be timed: each between two light convolutions, exported many at a time."""

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


class Sandwich(nn.Module):
    """One operator, in the form that a device runs, between convolutions that are light but shape the layout."""

    def __init__(self, call: OpCall) -> None:
        super().__init__()
        self.before = nn.ModuleList(
            nn.Sequential(nn.Conv2d(ENTRY_CHANNELS, shape.channels, 1), nn.ReLU()) for shape in call.inputs
        )
        self.operator = operator_form(call)
        self.after = nn.Conv2d(call.output().channels, EXIT_CHANNELS, 1)
        level(self)

    def forward(self, *maps: Tensor) -> Tensor:
        """Run on one entry map per input."""
        sources = [before(entry) for before, entry in zip(self.before, maps, strict=True)]
        result: Tensor = self.after(self.operator(*sources))
        return result


class Counter(nn.Module):
    """Several sandwiches side by side, so that one export serves all."""

    def __init__(self, calls: Sequence[OpCall]) -> None:
        super().__init__()
        self.sandwiches = nn.ModuleList(Sandwich(call) for call in calls)
        self._widths = [len(call.inputs) for call in calls]

    def forward(self, *maps: Tensor) -> tuple[Tensor, ...]:
        """Run all on their own entry maps."""
        results, start = [], 0
        for sandwich, width in zip(self.sandwiches, self._widths, strict=True):
            results.append(sandwich(*maps[start : start + width]))
            start += width
        return tuple(results)


def operator_files(calls: Sequence[OpCall]) -> list[bytes]:
    """Return one ONNX file per call; equal operators give equal bytes."""
    import onnx

    entries = [randn(1, ENTRY_CHANNELS, shape.height, shape.width) for call in calls for shape in call.inputs]
    names = [f"entry{index}" for index in range(len(entries))]
    model = onnx.load_from_string(
        onnx_bytes(Counter(calls).eval(), entries, names=names, output="first_output")
    )
    return [_renamed(part).SerializeToString(deterministic=True) for part in split(model)]


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


def level(module: nn.Module) -> None:
    """Give every kernel the same small weight throughout: times do not depend on values, and files compress."""
    with no_grad():
        for part in module.modules():
            if isinstance(part, nn.Conv2d):
                part.weight.fill_(1 / part.weight[0].numel())
                if part.bias is not None:
                    part.bias.zero_()


def _renamed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Name nodes and values by their place: profilers report these names, whatever the runtime fuses."""
    graph = model.graph
    last = graph.output[0].name
    neighbours = {value.name for value in graph.input}
    names = {value.name: f"entry{index}" for index, value in enumerate(graph.input)}
    names |= {weight.name: f"weight{index}" for index, weight in enumerate(graph.initializer)}
    for index, node in enumerate(graph.node):
        mark = "inside_"
        if node.output[0] == last:
            mark = AFTER
        elif node.input and node.input[0] in neighbours:
            mark = BEFORE
            if node.op_type == "Conv":  # its activation is the other half of the neighbour
                neighbours.add(node.output[0])
        names |= {name: f"{mark}{index}_{place}" for place, name in enumerate(node.output) if name}
        node.name = f"{mark}{index}"
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

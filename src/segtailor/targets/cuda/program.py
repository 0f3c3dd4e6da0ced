"""A module as a program to be recorded in a CUDA graph: traced, fused, with kernels chosen and branches on streams.

Independent branches go to different streams (lanes). When the program is recorded, they run in parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg

from segtailor.targets.cuda.fuse import FusedConvolution, FusedResize, fuse
from segtailor.targets.cuda.kernels import Chooser, chooser, milliseconds

# Numbers of streams to try. Parallel branches help if kernels are too small to fill the device; waiting costs a little.
LANE_COUNTS = (1, 2, 4)


def compile_program(module: nn.Module, inputs: Sequence[Tensor]) -> Program:
    """Return a fast form of the module for inputs of these sizes; the function is the same."""
    graph = fuse(trace(module, inputs))
    if inputs[0].device.type != "cuda":
        return Program(graph, lanes=1)
    choose_kernels(graph, inputs)
    programs = [Program(graph, lanes=lanes) for lanes in LANE_COUNTS]
    with torch.inference_mode():
        return min(programs, key=lambda candidate: milliseconds(candidate, inputs))


def trace(module: nn.Module, inputs: Sequence[Tensor]) -> fx.GraphModule:
    """Run the module once; return its operators as a flat graph with its weights as attributes."""
    with torch.no_grad():  # nothing can be traced in inference mode
        graph: fx.GraphModule = make_fx(module)(*inputs)
    graph.graph.eliminate_dead_code()
    return graph


def choose_kernels(graph: fx.GraphModule, inputs: Sequence[Tensor]) -> None:
    """Give every fused node the kernel that is fastest for the shapes of its inputs."""
    _Choosing(graph, chooser()).run(*inputs)


class _Choosing(fx.Interpreter):
    """Runs the graph once, and tries the kernels of each node on its inputs."""

    def __init__(self, graph: fx.GraphModule, chooser: Chooser) -> None:
        super().__init__(graph)
        self._chooser = chooser

    def run_node(self, n: fx.Node) -> object:
        """Choose, then compute."""
        if isinstance(n.target, FusedConvolution | FusedResize):
            inputs, _ = self.fetch_args_kwargs_from_env(n)
            n.target = self._chooser.choose(n.target, inputs)
        with torch.no_grad():
            return super().run_node(n)


@dataclass(frozen=True)
class ScheduledCall:
    """Run `call` on the stream `lane`, after the inputs in `waits` are computed on their streams."""

    node: fx.Node
    call: Callable[..., Any]
    lane: int
    waits: tuple[fx.Node, ...]


def schedule(graph: fx.Graph, lanes: int) -> list[ScheduledCall]:
    """Give each operator a lane: one whose last operator computed an input, otherwise the one that is idle longest."""
    placed: dict[fx.Node, int] = {}
    tails: dict[int, fx.Node] = {}
    age = dict.fromkeys(range(lanes), -1)
    calls = []
    for number, node in enumerate(node for node in graph.nodes if node.op == "call_function"):
        inputs = [part for part in node.all_input_nodes if part in placed]
        ends = [placed[part] for part in reversed(inputs) if part in tails.values()]
        lane = ends[0] if ends else min(age, key=lambda key: age[key])
        if not inputs and not tails:
            lane = 0
        waits = tuple(part for part in inputs if placed[part] != lane)
        calls.append(ScheduledCall(node, node.target, lane, waits))
        placed[node], tails[lane], age[lane] = lane, node, number
    return calls


class Program:
    """A scheduled graph. It can run eagerly, or while a CUDA graph is recorded."""

    def __init__(self, module: fx.GraphModule, *, lanes: int) -> None:
        self._graph = module.graph
        self._program = schedule(module.graph, lanes)
        self._constants = {
            node: _attribute(module, str(node.target)) for node in module.graph.nodes if node.op == "get_attr"
        }
        self._inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
        (self._result,) = (node.args[0] for node in module.graph.nodes if node.op == "output")
        self._lanes = lanes

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Run it; on a CUDA device on several streams, which join the current one at the end."""
        device = inputs[0].device
        values: dict[fx.Node, Any] = {**self._constants, **dict(zip(self._inputs, inputs, strict=True))}
        streams = self._streams(device)
        events: dict[fx.Node, Any] = {}
        shared = {part for step in self._program for part in step.waits}
        for step in self._program:
            with torch.cuda.stream(streams[step.lane]) if streams else nullcontext():
                for part in step.waits if streams else ():
                    streams[step.lane].wait_event(events[part])
                values[step.node] = self._call(step, values)
                if streams and step.node in shared:
                    events[step.node] = streams[step.lane].record_event()
        # All values live until here: memory freed on one stream may still be read on another.
        for stream in streams[1:]:
            streams[0].wait_stream(stream)
        result: Tensor = map_arg(self._result, lambda node: values[node])
        return result

    def _streams(self, device: torch.device) -> Sequence[Any]:
        if device.type != "cuda":
            return ()
        current = torch.cuda.current_stream(device)
        others: list[Any] = [torch.cuda.Stream(device) for _ in range(self._lanes - 1)]  # type: ignore[no-untyped-call]
        for stream in others:
            stream.wait_stream(current)
        return (current, *others)

    @staticmethod
    def _call(step: ScheduledCall, values: dict[fx.Node, Any]) -> Any:
        arguments = map_arg(step.node.args, lambda node: values[node])
        keywords = map_arg(step.node.kwargs, lambda node: values[node])
        return step.call(*arguments, **keywords)


def _attribute(module: fx.GraphModule, name: str) -> Any:
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part)
    return value

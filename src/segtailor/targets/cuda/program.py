"""From a module to the program that is recorded: traced, fused, kernels chosen, branches on streams."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, fx, nn

from segtailor.targets.cuda.fuse import FusedConvolution, FusedResize, fuse
from segtailor.targets.cuda.kernels import Chooser, chooser, milliseconds
from segtailor.targets.cuda.streams import Program
from segtailor.targets.cuda.traced import traced

LANES = (
    1,
    2,
    4,
)  # branches side by side help where kernels are too small to fill the device, and cost a little


def program(module: nn.Module, inputs: Sequence[Tensor]) -> Program:
    """Return a fast form of the module for inputs of these sizes; the function is the same."""
    graph = fuse(traced(module, inputs))
    if inputs[0].device.type != "cuda":
        return Program(graph, lanes=1)
    choose_kernels(graph, inputs)
    programs = [Program(graph, lanes=lanes) for lanes in LANES]
    with torch.inference_mode():
        return min(programs, key=lambda one: milliseconds(one, inputs))


def choose_kernels(graph: fx.GraphModule, inputs: Sequence[Tensor]) -> None:
    """Give every fused node the kernel that is fastest at the shapes it gets."""
    _Choosing(graph, chooser()).run(*inputs)


class _Choosing(fx.Interpreter):
    """Runs the graph once, and tries the kernels of a node on the values that reach it."""

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

"""A module at one input size as a flat list of tensor operators."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx


def traced(module: nn.Module, inputs: Sequence[Tensor]) -> fx.GraphModule:
    """Run the module once and return what it did, operator by operator, with its weights as attributes."""
    with torch.no_grad():  # inference mode would leave no trace
        graph: fx.GraphModule = make_fx(module)(*inputs)
    graph.graph.eliminate_dead_code()
    return graph

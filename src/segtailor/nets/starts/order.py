"""Sort the channels inside of inverted bottlenecks by importance, so that the leading ones are those worth keeping."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from segtailor.nets.network import Network
from segtailor.nets.starts.layers import LayerBlock, layer_graph
from segtailor.nets.starts.remap import NORM_FIELDS, channel_importance


@torch.no_grad()
def sort_hidden_channels(network: Network) -> None:
    """Reorder what lies between the expansion and the projection of every block; outputs stay as they are."""
    graph = layer_graph(network)
    importance = channel_importance(graph)
    blocks = [block for branch in graph.branches for stage in branch for block in stage.blocks]
    for block in blocks:
        whole = {"expand", "depth", "project"} <= set(block.layers)
        one_node = (
            len({layer.node for layer in block.layers.values()}) == 1
        )  # so nothing else reads the channels
        if whole and one_node:
            _reorder(block, importance[block.layers["depth"].reads].argsort(descending=True, stable=True))


def _reorder(block: LayerBlock, order: Tensor) -> None:
    for role in ("expand", "depth"):
        layer = block.layers[role]
        assert layer.conv is not None
        _take(layer.conv.weight, order)
        if layer.conv.bias is not None:
            _take(layer.conv.bias, order)
        if layer.norm is not None:
            for name in NORM_FIELDS:
                _take(getattr(layer.norm, name), order)
    project = block.layers["project"].conv
    assert isinstance(project, nn.Conv2d)
    project.weight.copy_(project.weight[:, order].clone())


def _take(values: Tensor, order: Tensor) -> None:
    values.copy_(values[order].clone())

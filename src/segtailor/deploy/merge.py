"""Do less for the same result: compute before enlarging, and nothing twice.

A pointwise convolution and a bilinear resize commute exactly (the four weights of a pixel add up to one, so the bias
too), which leaves a fraction of the pixels to convolve and fewer channels to enlarge.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import nn

from segtailor.core.plan import Node, Plan
from segtailor.nets.network import Network
from segtailor.ops.combining import Resize

COARSE = "_coarse"  # ends the name of a convolution that was moved before a resize


def merge(network: Network) -> Network:
    """Return a copy with the same function and less to compute."""
    return hoist(without_twins(network))


def without_twins(network: Network) -> Network:
    """Return a copy in which nodes without weights that do the same to the same inputs are one node."""
    first: dict[object, str] = {}
    same: dict[str, str] = {}
    nodes: list[Node] = []
    for node in network.plan.nodes:
        inputs = tuple(same.get(name, name) for name in node.inputs)
        key = (node.op, inputs, node.channels, node.stride)
        weightless = not any(True for _ in network.nodes[node.name].state_dict())
        if weightless and key in first:
            same[node.name] = first[key]
        else:
            nodes.append(replace(node, inputs=inputs))
            if weightless:
                first[key] = node.name
    outputs = {output: same.get(name, name) for output, name in network.plan.outputs.items()}
    plan = network.plan.with_nodes(tuple(nodes), outputs=outputs)
    return rebuilt(network, plan, {node.name: network.nodes[node.name] for node in nodes})


def hoist(network: Network) -> Network:
    """Return a copy in which pointwise convolutions that alone read an enlarged map read the small one instead."""
    plan, modules = network.plan, dict(network.nodes.items())
    resizes = {point.name: resize for resize, point in _movable(network)}
    gone = {resize.name for resize in resizes.values()}
    nodes: list[Node] = []
    for node in plan.nodes:
        if node.name in resizes:
            resize = resizes[node.name]
            source, like = resize.inputs
            coarse = node.name + COARSE
            nodes.append(replace(node, name=coarse, inputs=(source,)))
            nodes.append(replace(resize, name=node.name, inputs=(coarse, like), channels=node.channels))
            modules[coarse], modules[node.name] = modules[node.name], modules[resize.name]
        elif node.name not in gone:
            nodes.append(node)
    return rebuilt(network, plan.with_nodes(tuple(nodes)), modules)


def rebuilt(network: Network, plan: Plan, modules: Mapping[str, nn.Module]) -> Network:
    """Return a network that runs another plan with copies of the given modules."""
    with torch.device("meta"):  # the modules built here are only places for the given ones
        built = Network(plan, architecture=network.architecture)
    built.replace_all({node.name: copy.deepcopy(modules[node.name]) for node in plan.nodes})
    return built.eval()


def _movable(network: Network) -> Iterator[tuple[Node, Node]]:
    """Yield each resize that enlarges for one pointwise convolution alone, with that convolution."""
    plan = network.plan
    readers: Counter[str] = Counter(name for node in plan.nodes for name in node.inputs)
    readers.update(plan.outputs.values())
    for node in plan.nodes:
        resize = plan.by_name.get(node.inputs[0])
        if resize is None or not isinstance(resize.op, Resize) or readers[resize.name] != 1:
            continue
        source, enlarged = plan.shape(resize.inputs[0]), plan.shape(resize.name)
        smaller = source.height < enlarged.height and source.width < enlarged.width
        if smaller and node.channels <= source.channels and _is_pointwise(network.nodes[node.name]):
            yield resize, node


def _is_pointwise(module: nn.Module) -> bool:
    """Tell whether a module is one 1x1 convolution and nothing else."""
    parts = [part for part in module.modules() if not list(part.children())]
    if len(parts) != 1 or type(module) not in (nn.Sequential, nn.Conv2d):
        return False
    (conv,) = parts
    if not isinstance(conv, nn.Conv2d) or type(conv) is not nn.Conv2d:  # a subclass may pad or skip
        return False
    return (conv.kernel_size, conv.stride, conv.padding) == ((1, 1), (1, 1), (0, 0))

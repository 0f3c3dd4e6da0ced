"""Fuse a convolution or a resize with what follows it: bias, sum with another map, ReLU.

This changes only the graph: a fused node calls `FusedConvolution` or `FusedResize`, which compute the same function
with the operators of PyTorch. `kernels` chooses the kernel that runs it on a device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, fx
from torch.nn import functional

aten = torch.ops.aten


@dataclass(frozen=True, kw_only=True)
class FusedConvolution:
    """`act(conv(image) + bias + other)`; `other` is given only if `adds`."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    relu: bool = False
    adds: bool = False

    __name__: ClassVar[str] = "convolution"  # torch prints the target of a node that fails

    def __call__(self, image: Tensor, weight: Tensor, bias: Tensor | None, *other: Tensor) -> Tensor:
        """Compute it with the operators of PyTorch."""
        out = functional.conv2d(image, weight, bias, self.stride, self.padding, self.dilation, self.groups)
        out = out + other[0] if self.adds else out
        return out.relu() if self.relu else out


@dataclass(frozen=True, kw_only=True)
class FusedResize:
    """`act(bilinear(image) + other)`."""

    size: tuple[int, int]
    align_corners: bool
    relu: bool = False
    adds: bool = False

    __name__: ClassVar[str] = "resize"

    def __call__(self, image: Tensor, *other: Tensor) -> Tensor:
        """Compute it with the operators of PyTorch."""
        out = functional.interpolate(image, size=self.size, mode="bilinear", align_corners=self.align_corners)
        out = out + other[0] if self.adds else out
        return out.relu() if self.relu else out


Fused = FusedConvolution | FusedResize


def fuse(module: fx.GraphModule) -> fx.GraphModule:
    """Rewrite a traced graph in place and return it."""
    for node in list(module.graph.nodes):
        made = _recognised(node)
        if made is not None:
            _absorb_readers(node, *made)
    module.graph.eliminate_dead_code()
    return module  # the module is not recompiled: only its graph is used


def _recognised(node: fx.Node) -> tuple[Fused, tuple[Any, ...]] | None:
    """Return a convolution or resize as a fused operator and its inputs."""
    if node.target is aten.convolution.default:
        image, weight, bias, stride, padding, dilation, transposed, _, groups = node.args
        if transposed or len(stride) != 2:  # type: ignore[arg-type]
            return None
        conv = FusedConvolution(
            stride=tuple(stride),  # type: ignore[arg-type]
            padding=tuple(padding),  # type: ignore[arg-type]
            dilation=tuple(dilation),  # type: ignore[arg-type]
            groups=int(groups),  # type: ignore[arg-type]
        )
        return conv, (image, weight, bias)
    if node.target in (aten.upsample_bilinear2d.vec, aten.upsample_bilinear2d.default):
        height, width = node.meta["val"].shape[2:]
        return FusedResize(size=(height, width), align_corners=bool(node.args[2])), (node.args[0],)
    return None


def _absorb_readers(node: fx.Node, op: Fused, inputs: tuple[Any, ...]) -> None:
    """Add what its only reader does to the operator, as often as possible; then replace all of them by one node."""
    last = node
    while (reader := _only_reader(last)) is not None and not op.relu:
        if reader.target is aten.relu.default:
            op = replace(op, relu=True)
        elif (other := _summand(reader, last)) is not None and not op.adds:
            op, inputs = replace(op, adds=True), (*inputs, other)
        else:
            break
        last = reader
    graph = node.graph
    with graph.inserting_before(last):
        fused = graph.create_node("call_function", op, inputs, name=op.__name__)
    fused.meta = dict(last.meta)
    last.replace_all_uses_with(fused)


def _only_reader(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _summand(reader: fx.Node, value: fx.Node) -> fx.Node | None:
    """Return the other map of a plain sum of two maps of one shape."""
    if reader.target is not aten.add.Tensor or len(reader.args) != 2 or reader.kwargs:
        return None
    others = [arg for arg in reader.args if arg is not value]
    if len(others) != 1 or not isinstance(others[0], fx.Node):
        return None
    same = others[0].meta["val"].shape == value.meta["val"].shape
    return others[0] if same else None

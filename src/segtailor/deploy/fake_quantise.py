"""A folded network that computes as its int8 file will: weights and feature maps are rounded, gradients pass through.

For `BYTES_BETWEEN_LAYERS` it rounds where the quantiser of `nets/onnx/int8.py` puts a pair of QuantizeLinear and
DequantizeLinear: what the operators of `QUANTISED_OPERATORS` read and write, but not the last convolution and what
follows it. (Around resizes that the exporter finds to do nothing, a map may be rounded twice.) For
`INPUTS_OF_KERNELS` it rounds where `nets/mobile/ncnn_int8.py` does: what convolutions read. Training the rounded
network, quantisation-aware fine-tuning, moves its weights to where rounding does less harm.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from segtailor.nets.network import Network

# The same operators as in `QUANTISED_OPERATORS`, by their names in a graph of torch.export.
CONVOLUTIONS = frozenset({"conv2d", "convolution"})
ACTIVATIONS = frozenset({"relu", "clamp", "clamp_min", "hardtanh", "relu6"})  # fused into what comes before
QUANTISED = CONVOLUTIONS | ACTIVATIONS | {"add", "cat", "max_pool2d", "avg_pool2d"}
LEVELS = 255  # of feature maps: unsigned
SIGNED_LEVELS = 127  # of kernels and symmetric feature maps, on each side of zero
RANGE_MOMENTUM = 0.05  # share of a batch in the running range of a feature map


@dataclass(frozen=True, kw_only=True)
class Rounding:
    """Where and how a runtime rounds feature maps: with a range that is `symmetric` around zero or not."""

    only_inputs: bool
    symmetric: bool


BYTES_BETWEEN_LAYERS = Rounding(only_inputs=False, symmetric=False)  # ONNX Runtime, OpenVINO, LiteRT
INPUTS_OF_KERNELS = Rounding(only_inputs=True, symmetric=True)  # ncnn


class FakeQuantised(nn.Module):
    """An inference form (`deploy.fold.inference_form`) with rounding inside, for batches of one size.

    Weights are rounded per output channel, feature maps per tensor. `measure` has to be called before training.
    """

    def __init__(
        self,
        network: Network,
        *,
        batch: int,
        crop: tuple[int, int],
        rounding: Rounding = BYTES_BETWEEN_LAYERS,
    ) -> None:
        super().__init__()
        self.plan = network.plan
        like = next(network.parameters())
        example = torch.zeros(batch, network.plan.image.channels, *crop, dtype=like.dtype, device=like.device)
        with torch.no_grad():
            exported: Any = torch.export.export(network, (example,)).module(check_guards=False)
        self.graph = fx.GraphModule(exported, exported.graph)
        self.names = tuple(network.state_dict())
        _insert(self.graph, rounding)
        for parameter in self.graph.parameters():
            parameter.requires_grad_(True)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, rounded on the way."""
        logits: Tensor = self.graph(images)
        return logits

    @property
    def ranges(self) -> list[RoundedMap]:
        """The places where feature maps are rounded."""
        return [module for module in self.graph.modules() if isinstance(module, RoundedMap)]

    def measure(self, batches: Iterable[Tensor]) -> None:
        """Set the range of every feature map to the mean of the ranges of the images."""
        for place in self.ranges:
            place.begin()
        with torch.no_grad():
            for images in batches:
                self.graph(images)
        for place in self.ranges:
            place.end()

    def weights(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the part of a state dictionary of this module that belongs to the network."""
        return {name: state[f"graph.{name}"] for name in self.names}


class RoundedMap(nn.Module):
    """Rounds a feature map within a range that follows the maps it sees in training.

    It has 256 levels, or, if `symmetric`, 255 around zero.
    """

    def __init__(self, *, symmetric: bool = False) -> None:
        super().__init__()
        self._symmetric = symmetric
        self.low: Tensor
        self.high: Tensor
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.zeros(()))
        self._seen: list[Tensor] | None = None

    def begin(self) -> None:
        """Only look at maps from now on."""
        self._seen = []

    def end(self) -> None:
        """Take the mean of what was seen, and round from now on."""
        if self._seen:
            low, high = torch.cat(self._seen, dim=1).mean(dim=1)
            self.low.copy_(low)
            self.high.copy_(high)
        self._seen = None

    def forward(self, maps: Tensor) -> Tensor:
        """Round; in training the range follows."""
        if self._seen is not None or self.training:
            flat = maps.detach().flatten(1)
            seen = torch.stack([flat.amin(dim=1), flat.amax(dim=1)])
            if self._symmetric:
                largest = seen.abs().amax(dim=0)
                seen = torch.stack([-largest, largest])
            if self._seen is not None:
                self._seen.append(seen)
                return maps
            low, high = seen.mean(dim=1)
            self.low.lerp_(low, RANGE_MOMENTUM)
            self.high.lerp_(high, RANGE_MOMENTUM)
        if self._symmetric:
            scale = (self.high / SIGNED_LEVELS).clamp(min=1e-8)
            zero = torch.zeros_like(scale, dtype=torch.int32)
            return torch.fake_quantize_per_tensor_affine(maps, scale, zero, -SIGNED_LEVELS, SIGNED_LEVELS)
        low, high = self.low.clamp(max=0.0), self.high.clamp(min=0.0)  # zero is exact: padding is zero
        scale = ((high - low) / LEVELS).clamp(min=1e-8)
        zero = (-low / scale).round().to(torch.int32)
        return torch.fake_quantize_per_tensor_affine(maps, scale, zero, 0, LEVELS)


class RoundedWeight(nn.Module):
    """Rounds a kernel to 255 levels per output channel, symmetric around zero."""

    def forward(self, weight: Tensor) -> Tensor:
        """Round to the range of the weights themselves."""
        scale = weight.detach().abs().flatten(1).amax(dim=1).clamp(min=1e-8) / SIGNED_LEVELS
        zero = torch.zeros_like(scale, dtype=torch.int32)
        return torch.fake_quantize_per_channel_affine(weight, scale, zero, 0, -SIGNED_LEVELS, SIGNED_LEVELS)


def _insert(module: fx.GraphModule, rounding: Rounding) -> None:
    """Add the rounding to a graph."""
    graph = module.graph
    exact = _last_nodes(graph)
    rounded = [node for node in graph.nodes if _operator(node) in QUANTISED and node not in exact]
    if rounding.only_inputs:
        rounded = [node for node in rounded if _operator(node) in CONVOLUTIONS and not _has_groups(node)]
    maps: dict[fx.Node, None] = {}  # as an ordered set
    for node in rounded:
        sources = node.all_input_nodes[:1] if _operator(node) in CONVOLUTIONS else node.all_input_nodes
        read = sources if rounding.only_inputs else (*sources, node)
        maps.update(dict.fromkeys(map_ for map_ in read if _is_map(map_)))
    for number, source in enumerate([map_ for map_ in maps if not _is_fused(map_)]):
        _follow(module, source, f"rounded_map_{number}", RoundedMap(symmetric=rounding.symmetric))
    for number, node in enumerate(node for node in rounded if _operator(node) in CONVOLUTIONS):
        kernel = node.args[1]
        name = f"rounded_weight_{number}"
        module.add_submodule(name, RoundedWeight())
        with graph.inserting_before(node):
            node.replace_input_with(kernel, graph.call_module(name, (kernel,)))
    graph.lint()
    module.recompile()


def _follow(module: fx.GraphModule, source: fx.Node, name: str, place: nn.Module) -> None:
    """Let everything that reads a node read it through a module."""
    module.add_submodule(name, place)
    readers = list(source.users)
    with module.graph.inserting_after(source):
        behind = module.graph.call_module(name, (source,))
    for reader in readers:
        reader.replace_input_with(source, behind)


def _last_nodes(graph: fx.Graph) -> set[fx.Node]:
    """Return the last convolutions and all nodes after them, as `nets.onnx.int8.last_nodes` does."""
    waiting = [source for node in graph.nodes if node.op == "output" for source in node.all_input_nodes]
    found: set[fx.Node] = set()
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        if _operator(node) not in CONVOLUTIONS:
            waiting.extend(node.all_input_nodes)
    return found


def _operator(node: fx.Node) -> str:
    """Return the name of a node's operator without its overload, e.g. `conv2d`."""
    if node.op != "call_function":
        return ""
    return str(getattr(node.target, "__name__", node.target)).split(".")[0].rstrip("_")


def _has_groups(node: fx.Node) -> bool:
    """Tell whether a convolution has groups of several channels, which ncnn computes in single precision."""
    kernel = node.all_input_nodes[1].meta["val"]
    return bool(kernel.shape[1] < node.all_input_nodes[0].meta["val"].shape[1] and kernel.shape[1] > 1)


def _is_map(node: fx.Node) -> bool:
    """Tell whether a node is a feature map (or the image), and no weight or number."""
    value = node.meta.get("val")
    return (
        node.op != "get_attr" and isinstance(value, Tensor) and value.ndim == 4 and value.is_floating_point()
    )


def _is_fused(node: fx.Node) -> bool:
    """Tell whether only an activation reads a node: runtimes then compute both at once, and round once."""
    readers = list(node.users)
    return len(readers) == 1 and _operator(readers[0]) in ACTIVATIONS

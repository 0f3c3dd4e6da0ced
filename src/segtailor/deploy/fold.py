"""Turn a trained network into the form that a device runs. The function stays the same; there is less to compute.

Three steps, in this order: drop what only training needs (`prune`), fold branches and batch norms into convolutions
(`fold`), then convolve before enlarging and compute nothing twice (`simplify`).
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from segtailor.core.plan import Node, OpCall, Plan, Shape
from segtailor.nets.network import Network
from segtailor.ops.combining import Resize
from segtailor.ops.modules.convolutions import is_plain

M = TypeVar("M", bound=nn.Module)

TRACE_SHAPE = Shape(3, 64, 128)  # input on which layers are observed; any size shows which follows which
COARSE = "_coarse"  # suffix of the name of a convolution that was moved before a resize


def inference_form(network: Network) -> Network:
    """Return the network that a device should run: `main` output only, folded and simplified; same function."""
    return simplify(fold(prune(network)))


def operator_form(call: OpCall) -> nn.Module:
    """Build the module of one operator call in the form that a device runs."""
    module: nn.Module = call.op.module(call).eval()
    return fold_norms(_fold_branch(module), call.inputs)


def prune(network: Network) -> Network:
    """Return a copy that computes `main` only, without train-only outputs and unused nodes; weights are kept."""
    return _rebuild(network, network.plan.deployed(), network.nodes)


# Folding: one convolution for several branches, and none of the batch norms.


def fold(network: Network) -> Network:
    """Return a copy with branches and norms folded."""
    folded = fold_norms(fold_branches(network), (_traced(network),))
    folded.replace_all(dict(folded.nodes.items()))  # a node that was a norm is an identity now
    return folded


def _traced(network: Network) -> Shape:
    """Return the input of a network on which its layers are observed."""
    return TRACE_SHAPE._replace(channels=network.plan.image.channels)


def fold_branches(network: Network) -> Network:
    """Return a copy in which every re-parameterised block is one convolution with bias."""
    folded = copy.deepcopy(network).eval()
    folded.replace_all({name: _fold_branch(module) for name, module in folded.nodes.items()})
    return folded


def fold_norms(module: M, inputs: Sequence[Shape]) -> M:
    """Return a copy in which each norm that directly follows convolutions is part of their kernels and biases.

    A norm over the concatenation of several convolutions is folded into each of them.
    """
    folded = copy.deepcopy(module).eval()
    for pair in norm_pairs(folded, inputs):
        _absorb(pair)
        _remove(folded, pair.norm)
    return folded


class NormPair(NamedTuple):
    """A norm and the convolutions whose concatenated outputs it reads."""

    convs: tuple[nn.Conv2d, ...]
    norm: nn.BatchNorm2d


def norm_pairs(module: nn.Module, inputs: Sequence[Shape]) -> list[NormPair]:
    """Find the pairs that can be folded, by running the module once on random inputs.

    Names do not tell which norm follows which convolution. A pair is folded only if each of its layers runs once and
    nothing else reads the tensor between them.
    """
    like = next(module.parameters(), torch.empty(0))
    images = [torch.randn(1, *shape, dtype=like.dtype, device=like.device) for shape in inputs]
    flow = _DataFlow(module)
    try:
        with torch.no_grad(), flow:
            output = module(*images)
    finally:
        flow.remove_hooks()
    return flow.pairs(output)


class _DataFlow(TorchFunctionMode):
    """Records which layer writes and how often anything reads each tensor while a module runs."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.reads: Counter[int] = Counter()
        self.calls: Counter[nn.Module] = Counter()
        self.writers: dict[int, nn.Conv2d] = {}
        self.concatenated: dict[int, tuple[int, ...]] = {}
        self.normalised: list[tuple[int, nn.BatchNorm2d]] = []
        self._alive: list[Tensor] = []  # keeps tensors alive, so that no id is used twice
        self._hooks = [part.register_forward_hook(self._record) for part in module.modules()]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Count functions that compute a tensor as readers; asking for a shape is not reading."""
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor | tuple | list) and any(map(_is_tensor, tree_leaves(result))):
            self.reads.update(id(leaf) for leaf in tree_leaves((args, kwargs)) if _is_tensor(leaf))
            self._alive += filter(_is_tensor, tree_leaves((args, kwargs, result)))
        if func is torch.cat and 1 in (args[1:2] or [(kwargs or {}).get("dim")]):
            self.concatenated[id(result)] = tuple(map(id, args[0]))
        return result

    def _record(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        self.calls[module] += 1
        if isinstance(module, nn.Conv2d):
            self.writers[id(output)] = module
        elif type(module) is nn.BatchNorm2d:  # a subclass may do more than normalise
            self.normalised.append((id(inputs[0]), module))

    def remove_hooks(self) -> None:
        """Remove the hooks from the module."""
        for hook in self._hooks:
            hook.remove()

    def pairs(self, output: Any) -> list[NormPair]:
        """Return the norms whose inputs come from convolutions only and are read by nothing else."""
        self.reads.update(map(id, filter(_is_tensor, tree_leaves(output))))
        result = []
        for source, norm in self.normalised:
            parts = self.concatenated.get(source, (source,))
            convs = tuple(self.writers[part] for part in parts if part in self.writers)
            read_once = all(self.reads[value] == 1 for value in {source, *parts})
            run_once = all(self.calls[part] == 1 for part in (norm, *convs))
            if len(convs) == len(parts) and read_once and run_once and norm.running_mean is not None:
                result.append(NormPair(convs, norm))
        return result


def _is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)


def _fold_branch(module: nn.Module) -> nn.Module:
    fold_module: Callable[[], nn.Module] | None = getattr(module, "fold", None)
    return fold_module().eval() if callable(fold_module) else module


def _absorb(pair: NormPair) -> None:
    """Scale kernels and set biases, in double precision."""
    norm, widths = pair.norm, [conv.out_channels for conv in pair.convs]
    if norm.running_mean is None or norm.running_var is None:
        raise ValueError("a batch norm without running statistics cannot be folded")
    scale = 1 / (norm.running_var.double() + norm.eps).sqrt()
    shift = -norm.running_mean.double() * scale
    if norm.affine:
        scale, shift = scale * norm.weight.double(), shift * norm.weight.double() + norm.bias.double()
    parts = zip(pair.convs, torch.split(scale, widths), torch.split(shift, widths), strict=True)
    for conv, factor, offset in parts:
        bias = offset if conv.bias is None else offset + conv.bias.double() * factor
        kernel = conv.weight.double() * factor[:, None, None, None]
        conv.weight = nn.Parameter(kernel.detach().to(conv.weight.dtype), requires_grad=False)
        conv.bias = nn.Parameter(bias.detach().to(conv.weight.dtype), requires_grad=False)


def _remove(module: nn.Module, norm: nn.BatchNorm2d) -> None:
    """Remove a norm from a stack; anywhere else replace it by an identity."""
    for parent in module.modules():
        for name, child in list(parent.named_children()):
            if child is norm and type(parent) is nn.Sequential:
                delattr(parent, name)
            elif child is norm:
                setattr(parent, name, nn.Identity())


# Simplifying: fewer and smaller nodes.


def simplify(network: Network) -> Network:
    """Return a copy with the same function and less to compute."""
    return convolve_before_enlarging(merge_duplicates(network))


def merge_duplicates(network: Network) -> Network:
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
    return _rebuild(network, network.plan.with_nodes(tuple(nodes), outputs=outputs), network.nodes)


def convolve_before_enlarging(network: Network) -> Network:
    """Return a copy in which a pointwise convolution that is the only reader of an enlarged map reads the small one.

    A pointwise convolution and a bilinear resize commute exactly: the four weights of a pixel add up to one, so the
    bias commutes too. That leaves a fraction of the pixels to convolve and fewer channels to enlarge.
    """
    plan, modules = network.plan, dict(network.nodes.items())
    resizes = {point.name: resize for resize, point in _movable(network)}
    moved = {resize.name for resize in resizes.values()}
    nodes: list[Node] = []
    for node in plan.nodes:
        if node.name in resizes:
            resize = resizes[node.name]
            source, like = resize.inputs
            coarse = node.name + COARSE
            nodes.append(replace(node, name=coarse, inputs=(source,)))
            nodes.append(replace(resize, name=node.name, inputs=(coarse, like), channels=node.channels))
            modules[coarse], modules[node.name] = modules[node.name], modules[resize.name]
        elif node.name not in moved:
            nodes.append(node)
    return _rebuild(network, plan.with_nodes(tuple(nodes)), modules)


def _movable(network: Network) -> Iterator[tuple[Node, Node]]:
    """Yield each resize that enlarges for a single pointwise convolution, with that convolution."""
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
    if len(parts) != 1 or not (type(module) is nn.Sequential or is_plain(module)):
        return False
    (conv,) = parts
    if not isinstance(conv, nn.Conv2d) or not is_plain(conv):
        return False
    return (conv.kernel_size, conv.stride, conv.padding) == ((1, 1), (1, 1), (0, 0))


def _rebuild(network: Network, plan: Plan, modules: Mapping[str, nn.Module] | nn.ModuleDict) -> Network:
    """Return a network that runs another plan with copies of the given modules."""
    with torch.device("meta"):  # the modules built here are placeholders for the given ones
        built = Network(plan, architecture=network.architecture)
    built.replace_all({name: copy.deepcopy(modules[name]) for name in built.nodes})
    return built.eval()

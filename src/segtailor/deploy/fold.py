"""Fold training forms into inference forms, exactly: re-parameterised branches, then batch norms.

Which norm directly follows which convolution is not guessed from names: the module is run once on a small input and
watched. A pair is folded only if each of the two runs once and nothing else reads what lies between them.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from segtailor.core.plan import OpCall, Shape
from segtailor.deploy.merge import merge
from segtailor.deploy.prune import deployed
from segtailor.nets.network import Network

M = TypeVar("M", bound=nn.Module)

WATCHED = Shape(3, 64, 128)  # any size shows which layer follows which


def inference_form(network: Network) -> Network:
    """Return what a device should run: `main` alone, branches and norms folded, resizes late; same function."""
    return merge(fold(deployed(network)))


def operator_form(call: OpCall) -> nn.Module:
    """Build the module of one operator call in the form that a device would run."""
    module: nn.Module = call.op.module(call).eval()
    return fold_norms(_branches_folded(module), call.inputs)


def fold(network: Network) -> Network:
    """Return a copy with branches and norms folded."""
    folded = fold_norms(fold_branches(network), (WATCHED,))
    folded.replace_all(dict(folded.nodes.items()))  # a node that was a norm is an identity now
    return folded


def fold_branches(network: Network) -> Network:
    """Return a copy in which every re-parameterised block is one convolution with bias; the function is the same."""
    folded = copy.deepcopy(network).eval()
    folded.replace_all({name: _branches_folded(module) for name, module in folded.nodes.items()})
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
    """Find the pairs that can be folded, by running the module once."""
    like = next(module.parameters(), torch.empty(0))
    images = [torch.randn(1, *shape, dtype=like.dtype, device=like.device) for shape in inputs]
    watch = _DataFlow(module)
    try:
        with torch.no_grad(), watch:
            output = module(*images)
    finally:
        watch.release()
    return watch.pairs(output)


class _DataFlow(TorchFunctionMode):
    """Notes who makes and who reads each tensor while a module runs."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.reads: Counter[int] = Counter()
        self.calls: Counter[nn.Module] = Counter()
        self.makers: dict[int, nn.Conv2d] = {}
        self.joined: dict[int, tuple[int, ...]] = {}
        self.normed: list[tuple[int, nn.BatchNorm2d]] = []
        self._alive: list[Tensor] = []  # so that no identity is used twice
        self._hooks = [part.register_forward_hook(self._saw) for part in module.modules()]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Count as readers all functions that compute a tensor; asking for a shape is not reading."""
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor | tuple | list) and any(map(_is_tensor, tree_leaves(result))):
            self.reads.update(id(leaf) for leaf in tree_leaves((args, kwargs)) if _is_tensor(leaf))
            self._alive += filter(_is_tensor, tree_leaves((args, kwargs, result)))
        if func is torch.cat and 1 in (args[1:2] or [(kwargs or {}).get("dim")]):
            self.joined[id(result)] = tuple(map(id, args[0]))
        return result

    def _saw(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        self.calls[module] += 1
        if isinstance(module, nn.Conv2d):
            self.makers[id(output)] = module
        elif type(module) is nn.BatchNorm2d:  # a subclass may do more than normalise
            self.normed.append((id(inputs[0]), module))

    def release(self) -> None:
        """Take the hooks off."""
        for hook in self._hooks:
            hook.remove()

    def pairs(self, output: Any) -> list[NormPair]:
        """Return the norms whose inputs come from convolutions alone and go nowhere else."""
        self.reads.update(map(id, filter(_is_tensor, tree_leaves(output))))
        found = []
        for source, norm in self.normed:
            parts = self.joined.get(source, (source,))
            convs = tuple(self.makers[part] for part in parts if part in self.makers)
            alone = all(self.reads[value] == 1 for value in {source, *parts})
            once = all(self.calls[part] == 1 for part in (norm, *convs))
            if len(convs) == len(parts) and alone and once and norm.running_mean is not None:
                found.append(NormPair(convs, norm))
        return found


def _is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)


def _branches_folded(module: nn.Module) -> nn.Module:
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
    """Take a norm out of a stack; elsewhere an identity takes its place."""
    for parent in module.modules():
        for name, child in list(parent.named_children()):
            if child is norm and type(parent) is nn.Sequential:
                delattr(parent, name)
            elif child is norm:
                setattr(parent, name, nn.Identity())

"""Mixed operators at once: the arithmetic of many candidates in a few wide layers, equal up to rounding.

Three facts make it exact. Convolutions of one input are one convolution with concatenated kernels. A batch norm works
channel by channel, so norms of concatenated maps are one norm. Between layers of different candidates nothing is
shared, which a block-diagonal (or grouped) kernel expresses. Weights of the sum go into the last norm's scale and shift
where they are the same for all images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from segtailor.nets.mixed import Terms, plain
from segtailor.ops.modules.inverted_residual import InvertedResidualBlock

CONVS = ("expand", "depth", "project")


class NormState(NamedTuple):
    """A norm as tensors: statistics (moved in training), scale, shift; how it was called."""

    mean: Tensor
    variance: Tensor
    weight: Tensor
    bias: Tensor
    training: bool
    momentum: float
    eps: float


Kernel: TypeAlias = Callable[..., Tensor]


class Kernels(NamedTuple):
    """What stands between convolutions: norm and ReLU; norm and weighted sum over candidates, all or by parts."""

    norm_relu: Kernel
    norm_mix: Kernel


def norm_relu(maps: Tensor, state: NormState) -> Tensor:
    """Normalise and rectify."""
    return functional.relu(functional.batch_norm(maps, *state), inplace=True)


def norm_mix(maps: Tensor, state: NormState, weights: Tensor, parts: tuple[int, ...]) -> Tensor:
    """Normalise and weigh candidates, and add up those of each part: (images, parts, channels, height, width)."""
    channels, count = len(state.mean) // sum(parts), sum(parts)
    if weights.dim() == 1:  # one weight for the batch: part of the norm's own scale and shift
        scale = weights.to(state.weight.dtype).repeat_interleave(channels, output_size=channels * count)
        state = state._replace(weight=state.weight * scale, bias=state.bias * scale)
    normed = functional.batch_norm(maps, *state)
    split = normed.view(len(maps), count, channels, *maps.shape[2:])
    if weights.dim() == 2:
        split = split * weights.to(normed.dtype)[:, :, None, None, None]
    if parts == (1,) * count:
        return split
    starts = [sum(parts[:index]) for index in range(len(parts))]
    sums = [split[:, start : start + part].sum(dim=1) for start, part in zip(starts, parts, strict=True)]
    return torch.stack(sums, dim=1) if len(sums) > 1 else sums[0][:, None]


EAGER = Kernels(norm_relu, norm_mix)


@lru_cache(maxsize=1)
def compiled_kernels() -> Kernels:
    """Return the kernels through torch's compiler: one pass over memory instead of several."""
    return Kernels(*(torch.compile(kernel, dynamic=False) for kernel in EAGER))


class FusedInverted:
    """Mixes inverted residuals family by family (kernel and dilation); other candidates run as they are."""

    def __init__(self, kernels: Kernels = EAGER) -> None:
        self.kernels = kernels

    def __call__(self, image: Tensor, terms: Sequence[Terms]) -> list[Tensor]:
        """Return one sum for each of the terms."""
        return [self._mix(image, found) for found in terms]

    def _mix(self, image: Tensor, terms: Terms) -> Tensor:
        families: dict[tuple[int, int], list[int]] = {}
        others = []
        for index, module in enumerate(terms.modules):
            if isinstance(module, InvertedResidualBlock) and _is_standard(module):
                depth = _conv(_part(module, "depth"))
                families.setdefault((depth.kernel_size[0], depth.dilation[0]), []).append(index)
            else:
                others.append(index)
        sums = []
        for members in families.values():
            blocks = [terms.modules[index] for index in members]
            sums.append(self._family(image, blocks, terms.weights[..., members]))
        if others:
            rest = Terms(tuple(terms.modules[index] for index in others), terms.weights[..., others])
            sums += plain(image, [rest])
        total = sums[0]
        for other in sums[1:]:
            total = total + other
        return total

    def _family(self, image: Tensor, blocks: Sequence[nn.Module], weights: Tensor) -> Tensor:
        """Expand, filter and project all blocks of one kernel and dilation together."""
        expands, depths, projects = ([_conv(_part(block, name)) for block in blocks] for name in CONVS)
        first, second, last = (
            JointNorm([_norm(_part(block, f"{name}_norm")) for block in blocks]) for name in CONVS
        )
        kernel = torch.cat([_block_diagonal([conv]) if conv.groups > 1 else conv.weight for conv in expands])
        hidden = first.apply(self.kernels.norm_relu, functional.conv2d(image, kernel))
        kernel, depth = torch.cat([conv.weight for conv in depths]), depths[0]
        hidden = functional.conv2d(
            hidden, kernel, None, depth.stride, depth.padding, depth.dilation, groups=len(kernel)
        )
        hidden = second.apply(self.kernels.norm_relu, hidden)
        projected = functional.conv2d(hidden, _block_diagonal(projects))
        return last.apply(self.kernels.norm_mix, projected, weights, (len(blocks),))[:, 0]


class FusedUnits:
    """Mixes pre-activation units (ReLU, convolution or separable convolution, norm; once or twice) of one map.

    Nothing stands between the two convolutions of a separable one, so together they are a dense convolution.
    """

    def __init__(self, kernels: Kernels = EAGER) -> None:
        self.kernels = kernels

    def __call__(self, image: Tensor, terms: Sequence[Terms]) -> list[Tensor]:
        """Return one sum for each of the terms."""
        families: dict[tuple[int, ...], list[Unit]] = {}
        sums: list[Tensor | None] = [None] * len(terms)
        for target, found in enumerate(terms):
            others = []
            for index, module in enumerate(found.modules):
                layers = _unit_layers(module)
                if layers is None:
                    others.append(index)
                else:
                    unit = Unit(target, layers, found.weights[..., index])
                    families.setdefault(_form(layers), []).append(unit)
            if others:
                rest = Terms(tuple(found.modules[index] for index in others), found.weights[..., others])
                sums[target] = plain(image, [rest])[0]
        active = functional.relu(image) if families else image
        for units in families.values():
            self._add_family(active, units, sums)
        return [total for total in sums if total is not None]

    def _add_family(self, active: Tensor, units: Sequence[Unit], sums: list[Tensor | None]) -> None:
        """Run units of equal form layer by layer and add each to its sum."""
        maps = _conv_layers(active, [unit.layers[0] for unit in units], groups=1)
        for number in range(1, len(units[0].layers)):
            norms = JointNorm([unit.layers[number - 1].norm for unit in units])
            maps = norms.apply(self.kernels.norm_relu, maps)
            maps = _conv_layers(maps, [unit.layers[number] for unit in units], groups=len(units))
        targets = [unit.target for unit in units]  # in ascending order
        weights = torch.stack([unit.weight for unit in units], dim=-1)
        parts = tuple(targets.count(target) for target in dict.fromkeys(targets))
        norms = JointNorm([unit.layers[-1].norm for unit in units])
        outputs = norms.apply(self.kernels.norm_mix, maps, weights, parts)
        for index, target in enumerate(dict.fromkeys(targets)):
            before = sums[target]
            sums[target] = outputs[:, index] if before is None else before + outputs[:, index]


class JointNorm:
    """Several norms as one over the channels of a concatenated map; their statistics are kept up to date."""

    def __init__(self, norms: Sequence[nn.BatchNorm2d]) -> None:
        self.norms = norms

    def apply(self, kernel: Kernel, maps: Tensor, *rest: object) -> Tensor:
        """Run a kernel that begins with a norm."""
        first = self.norms[0]
        moved = [_tensor(norm.running_mean) for norm in self.norms]
        moved += [_tensor(norm.running_var) for norm in self.norms]
        weight, bias = _rows([norm.weight for norm in self.norms] + [norm.bias for norm in self.norms])
        mean, variance = _rows(moved)
        momentum = 0.0 if first.momentum is None else first.momentum
        state = NormState(mean, variance, weight, bias, first.training, momentum, first.eps)
        output = kernel(maps, state, *rest)
        if first.training:
            self._move(moved, [mean, variance])
        return output

    def _move(self, moved: list[Tensor], rows: Sequence[Tensor]) -> None:
        widths = [norm.num_features for norm in self.norms]
        counters = [norm.num_batches_tracked for norm in self.norms if norm.num_batches_tracked is not None]
        with torch.no_grad():
            torch._foreach_copy_(moved, [part for row in rows for part in torch.split(row, widths)])
            if counters:
                torch._foreach_add_(counters, 1)


class Layer(NamedTuple):
    """A dense kernel, how it is applied, and the norm behind it."""

    kernel: Tensor
    stride: int
    dilation: int
    norm: nn.BatchNorm2d


class Unit(NamedTuple):
    """One candidate: which sum it belongs to, its layers and its weight."""

    target: int
    layers: tuple[Layer, ...]
    weight: Tensor


def _unit_layers(module: nn.Module) -> tuple[Layer, ...] | None:
    """Read a stack of pre-activation units, or None for anything else (pooling, skips)."""
    if not isinstance(module, nn.Sequential) or not isinstance(getattr(module, "act1", None), nn.ReLU):
        return None
    layers = []
    for number in range(1, 1 + sum(isinstance(part, nn.BatchNorm2d) for part in module)):
        norm = _norm(module.get_submodule(f"norm{number}"))
        if hasattr(module, f"depth{number}"):
            conv = _conv(module.get_submodule(f"depth{number}"))
            point = _conv(module.get_submodule(f"point{number}"))
            kernel = point.weight * conv.weight.transpose(0, 1)
        else:
            conv = _conv(module.get_submodule(f"conv{number}"))
            kernel = conv.weight
        layers.append(Layer(kernel, conv.stride[0], conv.dilation[0], norm))
    return tuple(layers)


def _form(layers: Sequence[Layer]) -> tuple[int, ...]:
    """Return what units must have in common to run as one."""
    forms = [(layer.kernel.shape[-1], layer.stride, layer.dilation) for layer in layers]
    return tuple(number for form in forms for number in form)


def _conv_layers(maps: Tensor, layers: Sequence[Layer], *, groups: int) -> Tensor:
    kernel = torch.cat([layer.kernel for layer in layers])
    stride, dilation = layers[0].stride, layers[0].dilation
    padding = dilation * (kernel.shape[-1] - 1) // 2
    return functional.conv2d(maps, kernel, None, stride, padding, dilation, groups)


def _block_diagonal(convs: Sequence[nn.Conv2d]) -> Tensor:
    """Return the dense 1x1 kernel of convolutions (grouped ones included) that each read their own channels."""
    blocks = [block for conv in convs for block in conv.weight.flatten(1).chunk(conv.groups)]
    dense: Tensor = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
    return dense[:, :, None, None]


def _rows(values: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Concatenate two kinds of values at once: the first half, then the second."""
    first, second = torch.cat(list(values)).view(2, -1).unbind()
    return first, second


def _is_standard(block: InvertedResidualBlock) -> bool:
    layers = dict(block.body.named_children())
    convs = all(type(layers.get(name)) is nn.Conv2d for name in CONVS)
    return convs and isinstance(layers.get("expand_act"), nn.ReLU) and not block.residual


def _part(block: nn.Module, name: str) -> nn.Module:
    return block.get_submodule(f"body.{name}")


def _conv(module: nn.Module) -> nn.Conv2d:
    if not isinstance(module, nn.Conv2d):
        raise TypeError(f"expected a convolution, found {type(module).__name__}")
    return module


def _norm(module: nn.Module) -> nn.BatchNorm2d:
    if not isinstance(module, nn.BatchNorm2d):
        raise TypeError(f"expected a batch norm, found {type(module).__name__}")
    return module


def _tensor(value: Tensor | None) -> Tensor:
    if value is None:
        raise TypeError("a batch norm without running statistics cannot be fused")
    return value

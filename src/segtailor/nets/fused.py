"""Mixed operators at once: the arithmetic of many candidates in a few wide layers, equal up to rounding.

Three facts make it exact. Convolutions of one input are one convolution with concatenated kernels. A batch norm works
channel by channel, so norms of concatenated maps are one norm. Between layers of different candidates nothing is
shared, which a block-diagonal (or grouped) kernel expresses. Weights of the sum go into the last norm's scale and shift
where they are the same for all images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from segtailor.nets.mixed import Terms, plain
from segtailor.ops.modules.inverted_residual import InvertedResidualBlock


def fuse_inverted(image: Tensor, terms: Sequence[Terms]) -> list[Tensor]:
    """Mix inverted residuals family by family (kernel and dilation); other candidates run as they are."""
    return [_mix_inverted(image, found) for found in terms]


def fuse_units(image: Tensor, terms: Sequence[Terms]) -> list[Tensor]:
    """Mix pre-activation units (ReLU, convolution or separable convolution, norm; once or twice) of one map.

    Nothing stands between the two convolutions of a separable one, so together they are a dense convolution.
    """
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
                families.setdefault(_family(layers), []).append(unit)
        if others:
            rest = Terms(tuple(found.modules[index] for index in others), found.weights[..., others])
            sums[target] = plain(image, [rest])[0]
    active = functional.relu(image) if families else image
    for units in families.values():
        _add_family(active, units, sums)
    return [total for total in sums if total is not None]


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


def _mix_inverted(image: Tensor, terms: Terms) -> Tensor:
    families: dict[tuple[int, int], list[int]] = {}
    others = []
    for index, module in enumerate(terms.modules):
        if isinstance(module, InvertedResidualBlock) and _is_standard(module):
            depth = module.body.get_submodule("depth")
            families.setdefault((_conv(depth).kernel_size[0], _conv(depth).dilation[0]), []).append(index)
        else:
            others.append(index)
    sums = []
    for members in families.values():
        blocks = [terms.modules[index] for index in members]
        sums.append(_inverted_family(image, blocks, terms.weights[..., members]))
    if others:
        rest = Terms(tuple(terms.modules[index] for index in others), terms.weights[..., others])
        sums += plain(image, [rest])
    return _added(sums)


def _inverted_family(image: Tensor, blocks: Sequence[nn.Module], weights: Tensor) -> Tensor:
    """Expand, filter and project all blocks of one kernel and dilation together."""
    expands, depths, projects = ([_conv(_part(block, name)) for block in blocks] for name in CONVS)
    first, second, last = ([_norm(_part(block, f"{name}_norm")) for block in blocks] for name in CONVS)
    kernel = torch.cat([_block_diagonal([conv]) if conv.groups > 1 else conv.weight for conv in expands])
    hidden = functional.relu(joint_norm(functional.conv2d(image, kernel), first), inplace=True)
    kernel = torch.cat([conv.weight for conv in depths])
    depth = depths[0]
    hidden = functional.conv2d(
        hidden, kernel, None, depth.stride, depth.padding, depth.dilation, groups=len(kernel)
    )
    hidden = functional.relu(joint_norm(hidden, second), inplace=True)
    projected = functional.conv2d(hidden, _block_diagonal(projects))
    return _weighted_sum(projected, last, weights)


CONVS = ("expand", "depth", "project")


def _add_family(active: Tensor, units: Sequence[Unit], sums: list[Tensor | None]) -> None:
    """Run units of equal form layer by layer and add each to its sum."""
    first = [unit.layers[0] for unit in units]
    maps = _conv_layers(active, first, groups=1)
    for number in range(1, len(units[0].layers)):
        norms = [unit.layers[number - 1].norm for unit in units]
        maps = functional.relu(joint_norm(maps, norms), inplace=True)
        maps = _conv_layers(maps, [unit.layers[number] for unit in units], groups=len(units))
    targets = [unit.target for unit in units]
    weights = torch.stack([unit.weight for unit in units], dim=-1)
    norms = [unit.layers[-1].norm for unit in units]
    outputs = _weighted(maps, norms, weights)
    for target in dict.fromkeys(targets):
        start, count = targets.index(target), targets.count(target)
        part = outputs[:, start : start + count].sum(dim=1) if count > 1 else outputs[:, start]
        before = sums[target]
        sums[target] = part if before is None else before + part


def _conv_layers(maps: Tensor, layers: Sequence[Layer], *, groups: int) -> Tensor:
    kernel = torch.cat([layer.kernel for layer in layers])
    stride, dilation = layers[0].stride, layers[0].dilation
    padding = dilation * (kernel.shape[-1] - 1) // 2
    return functional.conv2d(maps, kernel, None, stride, padding, dilation, groups)


def _weighted_sum(maps: Tensor, norms: Sequence[nn.BatchNorm2d], weights: Tensor) -> Tensor:
    return _weighted(maps, norms, weights).sum(dim=1)


def _weighted(maps: Tensor, norms: Sequence[nn.BatchNorm2d], weights: Tensor) -> Tensor:
    """Normalise, weigh and separate the candidates: (images, candidates, channels, height, width)."""
    channels = norms[0].num_features
    if weights.dim() == 1:  # one weight for the batch: part of the norm's own scale and shift
        scale = weights.repeat_interleave(channels, output_size=channels * len(norms))
        return joint_norm(maps, norms, scale=scale).unflatten(1, (len(norms), channels))
    normed = joint_norm(maps, norms).unflatten(1, (len(norms), channels))
    return normed * weights.to(normed.dtype)[:, :, None, None, None]


def joint_norm(maps: Tensor, norms: Sequence[nn.BatchNorm2d], *, scale: Tensor | None = None) -> Tensor:
    """Apply several norms to the channels of one concatenated map, and keep their statistics up to date."""
    first = norms[0]
    weight = torch.cat([norm.weight for norm in norms])
    bias = torch.cat([norm.bias for norm in norms])
    if scale is not None:
        weight, bias = weight * scale, bias * scale
    means = [_buffer(norm.running_mean) for norm in norms]
    variances = [_buffer(norm.running_var) for norm in norms]
    mean, variance = torch.cat(means), torch.cat(variances)
    momentum = 0.0 if first.momentum is None else first.momentum
    maps = functional.batch_norm(maps, mean, variance, weight, bias, first.training, momentum, first.eps)
    if first.training:
        widths = [norm.num_features for norm in norms]
        with torch.no_grad():
            torch._foreach_copy_([*means, *variances], [*mean.split(widths), *variance.split(widths)])
            counters = [norm.num_batches_tracked for norm in norms if norm.num_batches_tracked is not None]
            if counters:
                torch._foreach_add_(counters, 1)
    return maps


def _unit_layers(module: nn.Module) -> tuple[Layer, ...] | None:
    """Read a stack of pre-activation units, or None for anything else (pooling, skips)."""
    if not isinstance(module, nn.Sequential) or not hasattr(module, "act1"):
        return None
    layers = []
    for number in range(1, 1 + sum(isinstance(part, nn.BatchNorm2d) for part in module)):
        norm = _norm(module.get_submodule(f"norm{number}"))
        if hasattr(module, f"depth{number}"):
            depth = _conv(module.get_submodule(f"depth{number}"))
            point = _conv(module.get_submodule(f"point{number}"))
            kernel = point.weight * depth.weight.transpose(0, 1)
        else:
            depth = _conv(module.get_submodule(f"conv{number}"))
            kernel = depth.weight
        layers.append(Layer(kernel, depth.stride[0], depth.dilation[0], norm))
    return tuple(layers)


def _family(layers: Sequence[Layer]) -> tuple[int, ...]:
    form = [(layer.kernel.shape[-1], layer.stride, layer.dilation) for layer in layers]
    return tuple(number for entry in form for number in entry)


def _block_diagonal(convs: Sequence[nn.Conv2d]) -> Tensor:
    """Return the dense 1x1 kernel of convolutions (grouped ones included) that each read their own channels."""
    blocks = [block for conv in convs for block in conv.weight.flatten(1).chunk(conv.groups)]
    return torch.block_diag(*blocks)[:, :, None, None]


def _is_standard(block: InvertedResidualBlock) -> bool:
    layers = dict(block.body.named_children())
    plain_conv = all(type(layers.get(name)) is nn.Conv2d for name in CONVS)
    return plain_conv and isinstance(layers.get("expand_act"), nn.ReLU) and not block.residual


def _added(sums: Sequence[Tensor]) -> Tensor:
    total = sums[0]
    for other in sums[1:]:
        total = total + other
    return total


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


def _buffer(value: Tensor | None) -> Tensor:
    if value is None:
        raise TypeError("a batch norm without running statistics cannot be fused")
    return value

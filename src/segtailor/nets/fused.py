"""Mixed operators at once: the arithmetic of many candidates in a few wide layers, equal up to rounding.

Facts that make it exact: convolutions of one input are one convolution with concatenated kernels; a batch norm works
channel by channel, so norms of concatenated maps are one norm; between layers of different candidates nothing is
shared, which a block-diagonal (or grouped) kernel expresses; weights of the sum go into the last norm's scale and shift
where they are the same for all images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from segtailor.nets.mixed import Terms, scaled
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


class Kernels(NamedTuple):
    """What stands between convolutions; exchangeable, so that a compiler can have it."""

    norm_relu: Callable[[Tensor, NormState], Tensor]
    norm_mix: Callable[[Tensor, NormState, Tensor, int], list[Tensor]]


def norm_relu(maps: Tensor, state: NormState) -> Tensor:
    """Normalise and rectify."""
    return functional.relu(functional.batch_norm(maps, *state), inplace=True)


def norm_mix(maps: Tensor, state: NormState, weights: Tensor, targets: int) -> list[Tensor]:
    """Normalise and weigh candidates, and add up those of each target; targets alternate fastest.

    Weights are (candidates,) or (images, candidates).
    """
    count = weights.shape[-1]
    channels = len(state.mean) // count
    if weights.dim() == 1:  # one weight for the batch: part of the norm's own scale and shift
        scale = weights.to(state.weight.dtype).repeat_interleave(channels, output_size=channels * count)
        state = state._replace(weight=state.weight * scale, bias=state.bias * scale)
    normed = functional.batch_norm(maps, *state)
    split = normed.view(len(maps), count // targets, targets, channels, *maps.shape[2:])
    if weights.dim() == 2:
        split = split * weights.to(normed.dtype).view(*split.shape[:3], 1, 1, 1)
    sums = split.sum(dim=1) if count > targets else split.squeeze(1)
    return list(sums.unbind(dim=1))


EAGER = Kernels(norm_relu, norm_mix)


@lru_cache(maxsize=1)
def compiled_kernels() -> Kernels:
    """Return the kernels through torch's compiler: one pass over memory instead of several."""
    return Kernels(torch.compile(norm_relu, dynamic=False), torch.compile(norm_mix, dynamic=False))


class FusedInverted:
    """Mixes inverted residuals family by family (kernel and dilation); other candidates run as they are."""

    def __init__(self, kernels: Kernels = EAGER) -> None:
        self.kernels = kernels

    def __call__(self, image: Tensor, terms: Sequence[Terms]) -> list[Tensor]:
        """Return one sum for each of the terms."""
        return [self._mix(image, found) for found in terms]

    def _mix(self, image: Tensor, terms: Terms) -> Tensor:
        families: dict[tuple[int, int], list[tuple[InvertedResidualBlock, Tensor]]] = {}
        sums = []
        for module, weight in zip(terms.modules, terms.weights.unbind(dim=-1), strict=True):
            if isinstance(module, InvertedResidualBlock) and _is_standard(module):
                depth = _conv(_part(module, "depth"))
                families.setdefault((depth.kernel_size[0], depth.dilation[0]), []).append((module, weight))
            else:
                sums.append(scaled(module(image), weight))
        # Ordered by groups: the kernels of the ungrouped ones are then one slice of the gathered values.
        rows = [sorted(family, key=lambda row: -_groups(row[0])) for family in families.values()]
        layers = _inverted_layers([[block for block, _ in row] for row in rows])
        for number, row in enumerate(rows):
            weights = torch.stack([weight for _, weight in row], dim=-1)
            sums.append(self._family(image, [block for block, _ in row], weights, layers.family(number)))
        layers.finish()
        return _added(sums)

    def _family(
        self, image: Tensor, blocks: Sequence[nn.Module], weights: Tensor, layers: FamilyLayers
    ) -> Tensor:
        """Expand, filter and project all blocks of one kernel and dilation together."""
        dense, filters = layers.kernels
        first, second, last = layers.norms
        expands, depths, projects = ([_conv(_part(block, name)) for block in blocks] for name in CONVS)
        grouped = [_block_diagonal([conv]) for conv in expands if conv.groups > 1]
        rows = dense.view(-1, image.shape[1], 1, 1)
        kernel = torch.cat([*grouped, rows]) if grouped else rows
        hidden = self.kernels.norm_relu(functional.conv2d(image, kernel), first)
        depth = depths[0]
        filters = filters.view(-1, 1, *depth.kernel_size)
        hidden = functional.conv2d(
            hidden, filters, None, depth.stride, depth.padding, depth.dilation, groups=len(filters)
        )
        hidden = self.kernels.norm_relu(hidden, second)
        projected = functional.conv2d(hidden, _block_diagonal(projects))
        (mixed,) = self.kernels.norm_mix(projected, last, weights, 1)
        return mixed


class FusedUnits:
    """Mixes pre-activation units (ReLU, convolution or separable convolution, norm; once or twice) of one map.

    Nothing stands between the two convolutions of a separable one, so together they are a dense convolution.
    """

    def __init__(self, kernels: Kernels = EAGER) -> None:
        self.kernels = kernels

    def __call__(self, image: Tensor, terms: Sequence[Terms]) -> list[Tensor]:
        """Return one sum for each of the terms; terms of the same candidates run together."""
        shapes = {tuple(_form(module) for module in found.modules) for found in terms}
        if len(shapes) > 1 or len({found.weights.dim() for found in terms}) > 1:
            return [total for found in terms for total in self._mix(image, [found])]
        return self._mix(image, terms)

    def _mix(self, image: Tensor, terms: Sequence[Terms]) -> list[Tensor]:
        columns = torch.stack([found.weights for found in terms], dim=-2).unbind(dim=-1)  # (targets,) each
        sums: list[list[Tensor]] = [[] for _ in terms]
        families: dict[tuple[int, ...], list[int]] = {}
        for index, module in enumerate(terms[0].modules):
            form = _form(module)
            if form:
                families.setdefault(form, []).append(index)
            else:
                for target, found in enumerate(terms):
                    sums[target].append(scaled(found.modules[index](image), columns[index][..., target]))
        rows = [
            sorted(family, key=lambda index: _is_separable(terms[0].modules[index]))
            for family in families.values()
        ]
        layers = _unit_layers([[found.modules[index] for index in row for found in terms] for row in rows])
        active = functional.relu(image)
        for number, row in enumerate(rows):
            weights = torch.stack([columns[index] for index in row], dim=-2).flatten(-2)
            modules = [found.modules[index] for index in row for found in terms]
            maps = self._family(active, modules, weights, layers.family(number), targets=len(terms))
            for target, part in enumerate(maps):
                sums[target].append(part)
        layers.finish()
        return [_added(parts) for parts in sums]

    def _family(
        self,
        maps: Tensor,
        modules: Sequence[nn.Module],
        weights: Tensor,
        layers: FamilyLayers,
        *,
        targets: int,
    ) -> list[Tensor]:
        """Run units of equal form layer by layer."""
        for number, state in enumerate(layers.norms):
            conv = _first_conv(modules[0], number + 1)
            kernel = _dense_kernel(layers.kernels[3 * number : 3 * number + 3], conv)
            groups = 1 if number == 0 else len(modules)
            maps = functional.conv2d(maps, kernel, None, conv.stride, conv.padding, conv.dilation, groups)
            if number + 1 < len(layers.norms):
                maps = self.kernels.norm_relu(maps, state)
        return self.kernels.norm_mix(maps, layers.norms[-1], weights, targets)


class FamilyLayers(NamedTuple):
    """Gathered values of one family: kernels (flat, in the order asked for) and norms."""

    kernels: Sequence[Tensor]
    norms: Sequence[NormState]


class Layers:
    """All small tensors of many candidates in a few long ones: one concatenation, whatever their number."""

    def __init__(
        self,
        kernels: Sequence[Sequence[Sequence[Tensor]]],
        norms: Sequence[Sequence[Sequence[nn.BatchNorm2d]]],
    ) -> None:
        rows = [row for family in norms for row in family]
        self._norms = [norm for row in rows for norm in row]
        lists = [list(row) for family in kernels for row in family]
        lists += [[norm.weight for norm in row] for row in rows]
        lists += [[norm.bias for norm in row] for row in rows]
        learned = iter(_gathered(lists))
        self._moved = [_tensor(norm.running_mean) for norm in self._norms]
        self._moved += [_tensor(norm.running_var) for norm in self._norms]
        self._statistics = torch.cat(self._moved) if self._moved else torch.empty(0)
        widths = [sum(norm.num_features for norm in row) for row in rows]
        moving = self._statistics.split(widths * 2)  # type: ignore[no-untyped-call]
        taken = [[next(learned) for _ in family] for family in kernels]
        weights, biases = [next(learned) for _ in rows], [next(learned) for _ in rows]
        states = iter(
            NormState(mean, variance, weight, bias, *_manner(row[0]))
            for mean, variance, weight, bias, row in zip(
                moving[: len(rows)], moving[len(rows) :], weights, biases, rows, strict=True
            )
        )
        self._families = [
            FamilyLayers(own, [next(states) for _ in family])
            for own, family in zip(taken, norms, strict=True)
        ]

    def family(self, number: int) -> FamilyLayers:
        """Return the values of one family."""
        return self._families[number]

    def finish(self) -> None:
        """Give the moved statistics back to the norms they belong to."""
        if not self._norms or not self._norms[0].training:
            return
        widths = [norm.num_features for norm in self._norms]
        counters = [norm.num_batches_tracked for norm in self._norms if norm.num_batches_tracked is not None]
        with torch.no_grad():
            torch._foreach_copy_(self._moved, list(self._statistics.split(widths * 2)))  # type: ignore[no-untyped-call]
            if counters:
                torch._foreach_add_(counters, 1)


def _inverted_layers(families: Sequence[Sequence[nn.Module]]) -> Layers:
    kernels, norms = [], []
    for blocks in families:
        expands, depths = ([_conv(_part(block, name)) for block in blocks] for name in CONVS[:2])
        dense = [conv.weight for conv in expands if conv.groups == 1]
        kernels.append([dense, [conv.weight for conv in depths]])
        norms.append([[_norm(_part(block, f"{name}_norm")) for block in blocks] for name in CONVS])
    return Layers(kernels, norms)


def _unit_layers(families: Sequence[Sequence[nn.Module]]) -> Layers:
    """Gather per layer: dense kernels, then pointwise and depthwise ones of separable convolutions."""
    kernels, norms = [], []
    for modules in families:
        own: list[list[Tensor]] = []
        for number in range(1, 1 + _repeats(modules[0])):
            parts = {
                kind: [_conv(part).weight for part in _named(modules, f"{kind}{number}")]
                for kind in ("conv", "point", "depth")
            }
            own += parts.values()
        kernels.append(own)
        counts = range(1, 1 + _repeats(modules[0]))
        norms.append([[_norm(part) for part in _named(modules, f"norm{number}")] for number in counts])
    return Layers(kernels, norms)


def _dense_kernel(flat: Sequence[Tensor], conv: nn.Conv2d) -> Tensor:
    """Join dense kernels and products of pointwise and depthwise ones."""
    dense, points, depths = flat
    width, size = conv.in_channels, conv.kernel_size
    parts = [dense.view(-1, width, *size)] if len(dense) else []
    if len(points):
        units = len(depths) // (width * size[0] * size[1])
        product = points.view(units, -1, width, 1, 1) * depths.view(units, 1, width, *size)
        parts.append(product.flatten(0, 1))
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _form(module: nn.Module) -> tuple[int, ...]:
    """Return what units must have in common to run as one; empty for anything else (pooling, skips)."""
    if not isinstance(module, nn.Sequential) or not isinstance(getattr(module, "act1", None), nn.ReLU):
        return ()
    convs = [_first_conv(module, number) for number in range(1, 1 + _repeats(module))]
    return tuple(value for conv in convs for value in (conv.kernel_size[0], conv.stride[0], conv.dilation[0]))


def _first_conv(module: nn.Module, number: int) -> nn.Conv2d:
    """Return the convolution of a layer that has its size, stride and dilation."""
    name = "depth" if _is_separable(module) else "conv"
    return _conv(module.get_submodule(f"{name}{number}"))


def _is_separable(module: nn.Module) -> bool:
    return hasattr(module, "depth1")


def _repeats(module: nn.Module) -> int:
    return sum(isinstance(part, nn.BatchNorm2d) for part in module.children())


def _named(modules: Sequence[nn.Module], name: str) -> list[nn.Module]:
    return [getattr(module, name) for module in modules if hasattr(module, name)]


def _gathered(lists: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Concatenate the flat tensors of each list, all in one go."""
    everything = [value.reshape(-1) for values in lists for value in values]
    if not everything:
        return [torch.empty(0) for _ in lists]
    sizes = [sum(value.numel() for value in values) for values in lists]
    return list(torch.cat(everything).split(sizes))  # type: ignore[no-untyped-call]


def _manner(norm: nn.BatchNorm2d) -> tuple[bool, float, float]:
    return norm.training, 0.0 if norm.momentum is None else norm.momentum, norm.eps


def _block_diagonal(convs: Sequence[nn.Conv2d]) -> Tensor:
    """Return the dense 1x1 kernel of convolutions (grouped ones included) that each read their own channels."""
    blocks = [block for conv in convs for block in conv.weight.flatten(1).chunk(conv.groups)]
    dense: Tensor = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
    return dense[:, :, None, None]


def _is_standard(block: InvertedResidualBlock) -> bool:
    layers = dict(block.body.named_children())
    convs = all(type(layers.get(name)) is nn.Conv2d for name in CONVS)
    return convs and isinstance(layers.get("expand_act"), nn.ReLU) and not block.residual


def _groups(block: nn.Module) -> int:
    return _conv(_part(block, "expand")).groups


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


def _tensor(value: Tensor | None) -> Tensor:
    if value is None:
        raise TypeError("a batch norm without running statistics cannot be fused")
    return value

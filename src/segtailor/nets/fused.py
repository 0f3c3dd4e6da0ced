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
    norm_mix: Callable[[Tensor, NormState, Tensor | None, int, int], list[Tensor]]


def norm_relu(maps: Tensor, state: NormState) -> Tensor:
    """Normalise and rectify."""
    return functional.relu(functional.batch_norm(maps, *state), inplace=True)


def norm_mix(
    maps: Tensor, state: NormState, weights: Tensor | None, candidates: int, targets: int
) -> list[Tensor]:
    """Normalise, weigh candidates by (images, candidates) and add up those of each target, which alternates fastest."""
    normed = functional.batch_norm(maps, *state)
    split = normed.view(len(maps), candidates // targets, targets, -1, *maps.shape[2:])
    if weights is not None:
        split = split * weights.to(normed.dtype).view(*split.shape[:3], 1, 1, 1)
    sums = split.sum(dim=1) if candidates > targets else split.squeeze(1)
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
        if rows:
            layers.weigh(torch.stack([weight for row in rows for _, weight in row], dim=-1))
        for row, family in zip(rows, layers.families, strict=True):
            sums.append(self._family(image, [block for block, _ in row], family))
        layers.finish()
        return _added(sums)

    def _family(self, image: Tensor, blocks: Sequence[nn.Module], layers: FamilyLayers) -> Tensor:
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
        (mixed,) = self.kernels.norm_mix(projected, last, layers.weights, len(blocks), 1)
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
        members = [[found.modules[index] for index in row for found in terms] for row in rows]
        layers = _unit_layers(members)
        if rows:
            layers.weigh(torch.cat([columns[index] for row in rows for index in row], dim=-1))
        active = functional.relu(image)
        for modules, family in zip(members, layers.families, strict=True):
            for target, part in enumerate(self._family(active, modules, family, targets=len(terms))):
                sums[target].append(part)
        layers.finish()
        return [_added(parts) for parts in sums]

    def _family(
        self, maps: Tensor, modules: Sequence[nn.Module], layers: FamilyLayers, *, targets: int
    ) -> list[Tensor]:
        """Run units of equal form layer by layer."""
        for number, (kernel, state) in enumerate(zip(layers.kernels, layers.norms, strict=True)):
            conv = _first_conv(modules[0], number + 1)
            groups = 1 if number == 0 else len(modules)
            maps = functional.conv2d(maps, kernel, None, conv.stride, conv.padding, conv.dilation, groups)
            if number + 1 < len(layers.norms):
                maps = self.kernels.norm_relu(maps, state)
        return self.kernels.norm_mix(maps, layers.norms[-1], layers.weights, len(modules), targets)


class FamilyLayers(NamedTuple):
    """Gathered values of one family: kernels (flat, in the order asked for) and norms."""

    kernels: Sequence[Tensor]
    norms: Sequence[NormState]
    weights: Tensor | None = None  # per image, where the last norm could not take them


class Layers:
    """All small tensors of many candidates in a few long ones: one concatenation, whatever their number."""

    def __init__(
        self,
        kernels: Sequence[Sequence[Sequence[Tensor]]],
        norms: Sequence[Sequence[Sequence[nn.BatchNorm2d]]],
    ) -> None:
        rows = [row for family in norms for row in family]
        self._norms = [norm for row in rows for norm in row]
        self._candidates = [family[-1] for family in norms]
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
        self.families = [
            FamilyLayers(own, [next(states) for _ in family])
            for own, family in zip(taken, norms, strict=True)
        ]

    def weigh(self, weights: Tensor) -> None:
        """Take the weights of all candidates in order, (candidates,) or (images, candidates).

        Those of a whole batch go into scale and shift of the last norms.
        """
        counts = [len(own) for own in self._candidates]
        if weights.dim() == 2:
            rows = weights.split(counts, dim=-1)  # type: ignore[no-untyped-call]
            self.families = [
                family._replace(weights=row) for family, row in zip(self.families, rows, strict=True)
            ]
            return
        lasts = [family.norms[-1] for family in self.families]
        widths = [len(state.mean) for state in lasts]
        scale = weights[:, None].expand(-1, sum(widths) // sum(counts)).flatten()  # all are equally wide
        values = torch.cat([state.weight for state in lasts] + [state.bias for state in lasts]).view(2, -1)
        scale_rows, shift_rows = (values * scale.to(values.dtype)).unbind()
        scales, shifts = (row.split(widths) for row in (scale_rows, shift_rows))  # type: ignore[no-untyped-call]
        for index, (weight, bias) in enumerate(zip(scales, shifts, strict=True)):
            family = self.families[index]
            last = family.norms[-1]._replace(weight=weight, bias=bias)
            self.families[index] = family._replace(norms=[*family.norms[:-1], last])

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
    """Gather the units' values; all separable kernels are multiplied out at once."""
    steps = [(modules, number) for modules in families for number in range(1, 1 + _repeats(modules[0]))]
    dense = [[_conv(part).weight for part in _named(modules, f"conv{number}")] for modules, number in steps]
    points, depths = (
        [_conv(part).weight for modules, number in steps for part in _named(modules, f"{kind}{number}")]
        for kind in ("point", "depth")
    )
    norms = [
        [[_norm(part) for part in _named(modules, f"norm{n}")] for n in range(1, 1 + _repeats(modules[0]))]
        for modules in families
    ]
    # The gathered values belong to no family yet: the first takes all, then each gets its own.
    layers = (
        Layers([[points, depths, *dense], *[[] for _ in families[1:]]], norms) if families else Layers([], [])
    )
    if families:
        flat = iter(_dense_kernels(layers.families[0].kernels, steps))
        layers.families = [
            family._replace(kernels=[next(flat) for _ in family.norms]) for family in layers.families
        ]
    return layers


def _dense_kernels(flat: Sequence[Tensor], steps: Sequence[tuple[Sequence[nn.Module], int]]) -> list[Tensor]:
    """Return one kernel per step: dense ones, then products of pointwise and depthwise ones."""
    points, depths, *dense = flat
    counts = [len(_named(modules, f"depth{number}")) for modules, number in steps]
    products: list[Tensor] = []
    if sum(counts):
        shape = next(_first_conv(modules[-1], n) for modules, n in steps if _is_separable(modules[-1]))
        width, size = shape.in_channels, shape.kernel_size
        joint = points.view(sum(counts), -1, width, 1, 1) * depths.view(sum(counts), 1, width, *size)
        products = [part.flatten(0, 1) for part in joint.split(counts)]  # type: ignore[no-untyped-call]
    kernels = []
    for index, (modules, number) in enumerate(steps):
        conv = _first_conv(modules[0], number)
        width = conv.in_channels
        parts = [dense[index].view(-1, width, *conv.kernel_size)] if len(dense[index]) else []
        parts += [products[index]] if counts[index] else []
        kernels.append(torch.cat(parts) if len(parts) > 1 else parts[0])
    return kernels


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

"""Pre-activation units of one map, mixed at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from segtailor.nets.fused import EAGER, FamilyLayers, Kernels, Layers, added, as_conv, as_norm
from segtailor.nets.mixed import Terms, scaled


class FusedUnits:
    """Mixes pre-activation units (ReLU, convolution or separable convolution, norm; once or twice) of one map.

    Nothing stands between the two convolutions of a separable one, so together they are a dense convolution.
    """

    def __init__(self, kernels: Kernels = EAGER) -> None:
        self.kernels = kernels

    def __call__(self, image: Tensor, terms: Sequence[Terms]) -> list[Tensor]:
        """Return one sum for each of the terms; terms of the same candidates run together."""
        # Dense and separable units may have one form, but their kernels are gathered apart: both must agree.
        shapes = {tuple((_form(part), _is_separable(part)) for part in found.modules) for found in terms}
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
        return [added(parts) for parts in sums]

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


def _unit_layers(families: Sequence[Sequence[nn.Module]]) -> Layers:
    """Gather the units' values; all separable kernels are multiplied out at once."""
    steps = [(modules, number) for modules in families for number in range(1, 1 + _repeats(modules[0]))]
    dense = [[as_conv(part).weight for part in _named(modules, f"conv{number}")] for modules, number in steps]
    points, depths = (
        [as_conv(part).weight for modules, number in steps for part in _named(modules, f"{kind}{number}")]
        for kind in ("point", "depth")
    )
    norms = [
        [[as_norm(part) for part in _named(modules, f"norm{n}")] for n in range(1, 1 + _repeats(modules[0]))]
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
    return as_conv(module.get_submodule(f"{name}{number}"))


def _is_separable(module: nn.Module) -> bool:
    return hasattr(module, "depth1")


def _repeats(module: nn.Module) -> int:
    return sum(isinstance(part, nn.BatchNorm2d) for part in module.children())


def _named(modules: Sequence[nn.Module], name: str) -> list[nn.Module]:
    return [getattr(module, name) for module in modules if hasattr(module, name)]

"""Pre-activation units and poolings of one map, mixed at once: fast on a GPU, and equal to one after another.

The max pooling here keeps only its input for the backward pass. Torch keeps the index of every maximum in 8 bytes, four
times the map itself in half precision: a tenth of all memory in a supernet with a pooling on every edge. Finding the
indices again takes one kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from segtailor.nets.fused import (
    EAGER,
    FamilyLayers,
    Kernels,
    Layers,
    added,
    as_computed,
    as_conv,
    as_norm,
    spread,
)
from segtailor.nets.mixed import Terms, scaled


class FusedUnits:
    """Mixes pre-activation units (ReLU, convolution or separable convolution, norm; once or twice) of one map.

    Nothing stands between the two convolutions of a separable one, so together they are a dense convolution. Poolings
    with a norm are pooled once for all that read the map.
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
        sums: list[Tensor] = []  # each has the channels of all targets, one behind the other
        families: dict[tuple[int, ...], list[int]] = {}
        for index, module in enumerate(terms[0].modules):
            form = _form(module)
            if form:
                families.setdefault(form, []).append(index)
            else:
                sums.append(_as_they_are([found.modules[index] for found in terms], image, columns[index]))
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
            maps = active if family.kernels else _pooled(image, modules)
            sums.append(self._family(maps, modules, family, targets=len(terms)))
        layers.finish()
        return list(added(sums).chunk(len(terms), dim=1))

    def _family(
        self, maps: Tensor, modules: Sequence[nn.Module], layers: FamilyLayers, *, targets: int
    ) -> Tensor:
        """Run candidates of equal form layer by layer."""
        for number, kernel in enumerate(layers.kernels):
            conv = _first_conv(modules[0], number + 1)
            groups = 1 if number == 0 else len(modules)
            maps = functional.conv2d(maps, kernel, None, conv.stride, conv.padding, conv.dilation, groups)
            if number + 1 < len(layers.kernels):
                maps = self.kernels.norm_relu(maps, layers.norms[number])
        return self.kernels.norm_mix(maps, layers.norms[-1], layers.weights, len(modules), targets)


def _as_they_are(modules: Sequence[nn.Module], image: Tensor, weights: Tensor) -> Tensor:
    """Run one candidate of every target by itself."""
    if all(isinstance(module, nn.Identity) for module in modules):
        return spread(image, weights)
    rows = zip(modules, weights.unbind(dim=-1), strict=True)
    return torch.cat([scaled(module(image), weight) for module, weight in rows], dim=1)


def _pooled(image: Tensor, modules: Sequence[nn.Module]) -> Tensor:
    """Pool once, and lay the map out once for every module: their norms keep statistics of their own."""
    pool = modules[0].get_submodule("pool")
    if not isinstance(pool, nn.MaxPool2d):
        raise TypeError(f"expected a max pooling, found {type(pool).__name__}")
    maps: Tensor = MaxPooling.apply(image, pool.kernel_size, pool.stride, pool.padding)  # type: ignore[no-untyped-call]
    return torch.cat([maps] * len(modules), dim=1) if len(modules) > 1 else maps


def _unit_layers(families: Sequence[Sequence[nn.Module]]) -> Layers:
    """Gather the units' values; all separable kernels are multiplied out at once."""
    steps = [(modules, number) for modules in families for number in range(1, 1 + _repeats(modules[0]))]
    points, depths, dense = (
        [as_conv(part).weight for modules, number in steps for part in _named(modules, f"{kind}{number}")]
        for kind in ("point", "depth", "conv")
    )
    norms = [
        [[as_norm(part) for part in _named(modules, name)] for name in _norm_names(modules[0])]
        for modules in families
    ]
    # The gathered values belong to no family yet: the first takes all, then each gets its own.
    layers = (
        Layers([[points, depths, dense], *[[] for _ in families[1:]]], norms) if families else Layers([], [])
    )
    if families:
        flat = iter(_dense_kernels(layers.families[0].kernels, steps))
        layers.families = [
            family._replace(kernels=[next(flat) for _ in range(_repeats(modules[0]))])
            for family, modules in zip(layers.families, families, strict=True)
        ]
    return layers


def _dense_kernels(flat: Sequence[Tensor], steps: Sequence[tuple[Sequence[nn.Module], int]]) -> list[Tensor]:
    """Return one kernel per step: dense ones, then products of pointwise and depthwise ones."""
    points, depths, dense = flat
    counts = [len(_named(modules, f"depth{number}")) for modules, number in steps]
    sizes = [
        sum(as_conv(part).weight.numel() for part in _named(modules, f"conv{number}"))
        for modules, number in steps
    ]
    products: list[Tensor] = []
    if sum(counts):
        shape = next(_first_conv(modules[-1], n) for modules, n in steps if _is_separable(modules[-1]))
        width, size = shape.in_channels, shape.kernel_size
        joint = points.view(sum(counts), -1, width, 1, 1) * depths.view(sum(counts), 1, width, *size)
        products = [part.flatten(0, 1) for part in as_computed(joint).split(counts)]  # type: ignore[no-untyped-call]
    kernels = []
    rows = as_computed(dense).split(sizes)  # type: ignore[no-untyped-call]
    for index, (modules, number) in enumerate(steps):
        conv = _first_conv(modules[0], number)
        parts = [rows[index].view(-1, conv.in_channels, *conv.kernel_size)] if sizes[index] else []
        parts += [products[index]] if counts[index] else []
        kernels.append(torch.cat(parts) if len(parts) > 1 else parts[0])
    return kernels


def _form(module: nn.Module) -> tuple[int, ...]:
    """Return what candidates must have in common to run as one; empty for those that run as they are (skips)."""
    if not isinstance(module, nn.Sequential):
        return ()
    pool = getattr(module, "pool", None)
    if isinstance(pool, nn.MaxPool2d) and [name for name, _ in module.named_children()] == ["pool", "norm"]:
        return 0, *(value for side in (pool.kernel_size, pool.stride) for value in _pair(side))
    if not isinstance(getattr(module, "act1", None), nn.ReLU):
        return ()
    convs = [_first_conv(module, number) for number in range(1, 1 + _repeats(module))]
    return tuple(value for conv in convs for value in (conv.kernel_size[0], conv.stride[0], conv.dilation[0]))


def _pair(side: int | tuple[int, ...]) -> tuple[int, ...]:
    return (side, side) if isinstance(side, int) else side


def _first_conv(module: nn.Module, number: int) -> nn.Conv2d:
    """Return the convolution of a layer that has its size, stride and dilation."""
    name = "depth" if _is_separable(module) else "conv"
    return as_conv(module.get_submodule(f"{name}{number}"))


def _is_separable(module: nn.Module) -> bool:
    return hasattr(module, "depth1")


def _repeats(module: nn.Module) -> int:
    """Return how many convolutions (or separable ones) follow each other; a pooling has none."""
    return 0 if hasattr(module, "pool") else len(_norm_names(module))


def _norm_names(module: nn.Module) -> list[str]:
    return [name for name, part in module.named_children() if isinstance(part, nn.BatchNorm2d)]


def _named(modules: Sequence[nn.Module], name: str) -> list[nn.Module]:
    return [getattr(module, name) for module in modules if hasattr(module, name)]


class MaxPooling(torch.autograd.Function):
    """Call as `MaxPooling.apply(image, kernel, stride, padding)`."""

    @staticmethod
    def forward(ctx: Any, image: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
        """Pool."""
        ctx.save_for_backward(image)
        ctx.window = kernel, stride, padding
        return functional.max_pool2d(image, kernel, stride, padding)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        """Pool again to know where the maxima were."""
        (image,) = ctx.saved_tensors
        with torch.enable_grad():
            again = image.detach().requires_grad_()
            pooled = functional.max_pool2d(again, *ctx.window)
            (found,) = torch.autograd.grad(pooled, again, gradient)
        return found, None, None, None

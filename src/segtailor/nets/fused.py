"""What the fused mixes of several families share: norms joined to one, small tensors gathered at once, kernels.

Facts that make fusing exact: convolutions of one input are one convolution with concatenated kernels; a batch norm
works channel by channel, so norms of concatenated maps are one norm; between layers of different candidates nothing is
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


class NormState(NamedTuple):
    """A norm as arguments of `batch_norm`: statistics (updated in training), scale, shift, mode."""

    mean: Tensor
    variance: Tensor
    weight: Tensor
    bias: Tensor
    training: bool
    momentum: float
    eps: float


class Kernels(NamedTuple):
    """What runs between convolutions: as it is (`EAGER`), or compiled."""

    norm_relu: Callable[[Tensor, NormState], Tensor]
    norm_mix: Callable[[Tensor, NormState, Tensor | None, int, int], Tensor]


def norm_relu(maps: Tensor, state: NormState) -> Tensor:
    """Normalise and rectify."""
    return functional.relu(functional.batch_norm(maps, *state), inplace=True)


def norm_mix(maps: Tensor, state: NormState, weights: Tensor | None, candidates: int, targets: int) -> Tensor:
    """Normalise, weigh candidates by (images, candidates) and add up those of each target, which alternates fastest.

    The sums of all targets are one map, their channels one behind the other.
    """
    normed = functional.batch_norm(maps, *state)
    terms = candidates // targets
    if _channels_last(maps):
        # Summed in the memory order of the maps, so that sums have it too: another order costs a copy at every layer.
        rows = normed.permute(0, 2, 3, 1).view(len(maps), *maps.shape[2:], terms, targets, -1)
        if weights is not None:
            rows = rows * weights.to(normed.dtype).view(len(maps), 1, 1, *rows.shape[3:5], 1)
        sums = rows.sum(dim=3) if terms > 1 else rows.squeeze(3)
        return sums.flatten(3).permute(0, 3, 1, 2)
    split = normed.view(len(maps), terms, targets, -1, *maps.shape[2:])
    if weights is not None:
        split = split * weights.to(normed.dtype).view(*split.shape[:3], 1, 1, 1)
    sums = split.sum(dim=1) if terms > 1 else split.squeeze(1)
    return sums.flatten(1, 2)


def spread(image: Tensor, weights: Tensor) -> Tensor:
    """Return a map times (targets,) or (images, targets) weights, one target's channels behind the other's."""
    rows = weights.to(image.dtype).reshape(-1, weights.shape[-1])
    if _channels_last(image):
        last = image.permute(0, 2, 3, 1)[:, :, :, None] * rows[:, None, None, :, None]
        return last.flatten(3).permute(0, 3, 1, 2)
    return (image[:, None] * rows[:, :, None, None, None]).flatten(1, 2)


def _channels_last(maps: Tensor) -> bool:
    return maps.is_contiguous(memory_format=torch.channels_last) and not maps.is_contiguous()


EAGER = Kernels(norm_relu, norm_mix)


@lru_cache(maxsize=1)
def compiled_kernels() -> Kernels:
    """Return the kernels through torch's compiler: one pass over memory instead of several.

    Sizes stay open: a supernet has dozens, and the compiler gives up after a few versions of one function.
    """
    return Kernels(torch.compile(norm_relu, dynamic=True), torch.compile(norm_mix, dynamic=True))


class FamilyLayers(NamedTuple):
    """Gathered values of one family, candidates that run as one: kernels (flat, in the given order) and norms."""

    kernels: Sequence[Tensor]
    norms: Sequence[NormState]
    weights: Tensor | None = None  # per image, where the last norm could not take them


class Layers:
    """All small tensors of many candidates in a few long ones, made by one concatenation."""

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
        self._running = [_tensor(norm.running_mean) for norm in self._norms]
        self._running += [_tensor(norm.running_var) for norm in self._norms]
        self._statistics = torch.cat(self._running) if self._running else torch.empty(0)
        widths = [sum(norm.num_features for norm in row) for row in rows]
        moving = self._statistics.split(widths * 2)  # type: ignore[no-untyped-call]
        taken = [[next(learned) for _ in family] for family in kernels]
        weights, biases = [next(learned) for _ in rows], [next(learned) for _ in rows]
        states = iter(
            NormState(mean, variance, weight, bias, *_mode(row[0]))
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
        """Write the updated statistics back to the norms."""
        if not self._norms or not self._norms[0].training:
            return
        widths = [norm.num_features for norm in self._norms]
        counters = [norm.num_batches_tracked for norm in self._norms if norm.num_batches_tracked is not None]
        with torch.no_grad():
            torch._foreach_copy_(self._running, list(self._statistics.split(widths * 2)))  # type: ignore[no-untyped-call]
            if counters:
                torch._foreach_add_(counters, 1)


def added(sums: Sequence[Tensor]) -> Tensor:
    """Add maps one by one."""
    total = sums[0]
    for other in sums[1:]:
        total = total + other
    return total


def as_computed(kernels: Tensor) -> Tensor:
    """Return kernels in the precision that autocast gives convolutions: cast once instead of one by one."""
    kind = kernels.device.type
    return kernels.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else kernels


def as_conv(module: nn.Module) -> nn.Conv2d:
    """Return a module that must be a convolution."""
    if not isinstance(module, nn.Conv2d):
        raise TypeError(f"expected a convolution, found {type(module).__name__}")
    return module


def as_norm(module: nn.Module) -> nn.BatchNorm2d:
    """Return a module that must be a batch norm."""
    if not isinstance(module, nn.BatchNorm2d):
        raise TypeError(f"expected a batch norm, found {type(module).__name__}")
    return module


def _gathered(lists: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Concatenate the flat tensors of each list, all in one go."""
    everything = [value.reshape(-1) for values in lists for value in values]
    if not everything:
        return [torch.empty(0) for _ in lists]
    sizes = [sum(value.numel() for value in values) for values in lists]
    return list(torch.cat(everything).split(sizes))  # type: ignore[no-untyped-call]


def _mode(norm: nn.BatchNorm2d) -> tuple[bool, float, float]:
    return norm.training, 0.0 if norm.momentum is None else norm.momentum, norm.eps


def _tensor(value: Tensor | None) -> Tensor:
    if value is None:
        raise TypeError("a batch norm without running statistics cannot be fused")
    return value

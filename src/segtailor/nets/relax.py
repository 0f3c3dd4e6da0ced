"""From logits to weights on the simplex: softmax, Gumbel, straight-through and one-hot; schedules of temperature.

Every function works on tensors whose last dimension is the options, so one decision or a whole table of them can be
relaxed at once. Supernets define what the weights drive; strategies choose the relaxation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from segtailor.core.errors import Unsupported
from segtailor.core.space import Decision, Picks

# By decision name: (options,), or (images, options) for one draw per image.
Weights: TypeAlias = Mapping[str, Tensor]
Live: TypeAlias = Mapping[str, tuple[int, ...]]  # decision name -> options with a weight other than zero

Mode: TypeAlias = Literal["soft", "pair", "path", "prune"]
Widths: TypeAlias = Literal[
    "own", "least", "most", "random"
]  # of a pass: as decided, or these of all options


def softmax(logits: Tensor, *, temperature: float | Tensor = 1.0, active: Tensor | None = None) -> Tensor:
    """Return probabilities; options that are not `active` get exactly zero, and so do their gradients.

    A temperature that is a tensor is not checked: reading it would wait for the device.
    """
    if not isinstance(temperature, Tensor):
        _check_temperature(temperature)
    if active is not None:
        logits = _masked(logits, active)
    return torch.softmax(logits / temperature, dim=-1)


def gumbel(
    logits: Tensor,
    *,
    temperature: float,
    generator: torch.Generator,
    images: int | None = None,
    active: Tensor | None = None,
) -> Tensor:
    """Draw from the Gumbel-softmax distribution; with `images`, one draw for each: (..., images, options).

    The largest weight of a draw is a categorical sample from `softmax(logits)`, whatever the temperature.
    """
    _check_temperature(temperature)
    if images is not None:
        logits = logits.unsqueeze(-2).expand(*logits.shape[:-1], images, logits.shape[-1])
        active = active if active is None else active.unsqueeze(-2)
    noise = gumbel_noise(logits.shape, generator=generator).to(logits.device, logits.dtype)
    return softmax(logits + noise, temperature=temperature, active=active)


def gumbel_noise(shape: Iterable[int], *, generator: torch.Generator) -> Tensor:
    """Draw Gumbel(0, 1) noise on the generator's device."""
    uniform = torch.rand(tuple(shape), generator=generator, device=generator.device)
    tiny = torch.finfo(uniform.dtype).tiny
    # The largest float below one gives a noise of 16.6; one itself would give infinity.
    return -torch.log(-torch.log(uniform.clamp(tiny, 1 - torch.finfo(uniform.dtype).eps / 2)))


def straight_through(soft: Tensor) -> Tensor:
    """Return one-hot weights whose gradient is that of the soft ones: `1 + m - stop_gradient(m)` where m is largest.

    The bracket keeps the values exact, so that a mixed operator runs the chosen candidate alone.
    """
    hard = torch.zeros_like(soft).scatter(-1, soft.argmax(dim=-1, keepdim=True), 1.0)
    return hard + (soft - soft.detach())


def pruned(soft: Tensor, *, threshold: float = 1e-3) -> Tensor:
    """Set weights below `threshold` to zero and rescale the rest to sum to one; the largest always stays."""
    if not 0 <= threshold < 1:
        raise Unsupported(f"prune threshold is {threshold}; choose a share from 0 to below 1, e.g. 0.001.")
    kept = (soft >= threshold) | (soft >= soft.amax(dim=-1, keepdim=True))
    remaining = torch.where(kept, soft, torch.zeros_like(soft))
    return remaining / remaining.sum(dim=-1, keepdim=True)


def paired(soft: Tensor) -> Tensor:
    """Keep the two largest weights, rescaled to sum to one, the first of equals first; a lone option stays."""
    if soft.shape[-1] <= 2:
        return soft
    kept = torch.zeros_like(soft, dtype=torch.bool).scatter(-1, soft.topk(2, dim=-1).indices, value=True)
    remaining = torch.where(kept, soft, torch.zeros_like(soft))
    return remaining / remaining.sum(dim=-1, keepdim=True)


def driving(
    decisions: Iterable[Decision], soft: Weights, mode: Mode = "soft", *, threshold: float = 1e-3
) -> dict[str, Tensor]:
    """Return the weights that drive `forward` where soft ones were drawn; costs use the soft ones in any mode.

    `soft` runs everything. `pair` runs the two likeliest candidates of a draw, mixed; `path` the likeliest alone. Both
    leave depths soft: the weight of an exit is only a factor, which the norm behind it removes together with the
    gradient. With `path`, the gradient of the only operator says whether more of it would help, not whether another one
    would be better. `prune` skips weights below `threshold`.
    """
    if mode not in get_args(Mode):
        raise Unsupported(f"mode is '{mode}'; choose one of {', '.join(get_args(Mode))}.")
    if mode == "prune":
        return {decision.name: pruned(soft[decision.name], threshold=threshold) for decision in decisions}
    few = {"path": straight_through, "pair": paired}.get(mode)
    return {
        decision.name: soft[decision.name]
        if few is None or decision.group == "depth"
        else few(soft[decision.name])
        for decision in decisions
    }


def one_hot(pick: int, options: int, *, device: torch.device | None = None) -> Tensor:
    """Return the weights of a definite choice."""
    if not 0 <= pick < options:
        raise Unsupported(f"option {pick} does not exist; there are {options}, counted from 0.")
    weights = torch.zeros(options, device=device)
    weights[pick] = 1
    return weights


def one_hot_weights(
    decisions: Iterable[Decision], picks: Picks, *, device: torch.device | None = None
) -> dict[str, Tensor]:
    """Return weights that drive a supernet along one architecture."""
    return {
        decision.name: one_hot(picks[decision.name], len(decision.options), device=device)
        for decision in decisions
    }


def live(weights: Weights) -> dict[str, tuple[int, ...]]:
    """Tell which options have a weight other than zero, for any image; one transfer from the device for all."""
    names = list(weights)
    if not names:
        return {}
    tables = [weights[name].detach() for name in names]
    rows = [table if table.dim() == 1 else table.abs().flatten(0, -2).amax(dim=0) for table in tables]
    flags = (torch.cat(rows) != 0).tolist()
    options, start = {}, 0
    for name, row in zip(names, rows, strict=True):
        own = flags[start : start + len(row)]
        options[name] = tuple(index for index, flag in enumerate(own) if flag)
        start += len(row)
    return options


def entropy(probabilities: Tensor) -> Tensor:
    """Return the entropy over the last dimension in nats; zero for a definite choice."""
    total: Tensor = torch.special.entr(probabilities).sum(dim=-1)
    return total


def linear(start: float, end: float, progress: float) -> float:
    """Go from `start` to `end` in a straight line as progress goes from 0 to 1 (SNAS, AutoRTNet)."""
    _check_schedule(start, end, progress)
    return start + (end - start) * progress


def geometric(start: float, end: float, progress: float) -> float:
    """Go from `start` to `end` by equal factors as progress goes from 0 to 1."""
    _check_schedule(start, end, progress)
    return float(start * (end / start) ** progress)


def exponential(start: float, rate: float, time: float) -> float:
    """Decay as `start * exp(-rate * time)`; FBNet's temperature has a rate of 0.045 per epoch."""
    _check_temperature(start)
    value = start * math.exp(-rate * time)
    _check_temperature(value)
    return value


def _check_temperature(temperature: float) -> None:
    if not (math.isfinite(temperature) and temperature > 0):
        raise Unsupported(
            f"temperature is {temperature}; a softmax needs a positive one. Let the schedule end above zero "
            "(e.g. 0.03), or ask for straight-through weights to get definite choices."
        )


def _check_schedule(start: float, end: float, progress: float) -> None:
    _check_temperature(start)
    _check_temperature(end)
    if not 0 <= progress <= 1:
        raise Unsupported(
            f"progress is {progress}; a schedule runs from 0 to 1: divide by the planned length."
        )


def _masked(logits: Tensor, active: Tensor) -> Tensor:
    if not bool(active.any(dim=-1).all()):
        raise Unsupported("every option of a decision was removed; keep at least one active.")
    return logits.masked_fill(~active.to(logits.device), -math.inf)

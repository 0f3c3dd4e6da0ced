"""Leaving parts of residual sums out while training, so that no path is relied on alone.

Stochastic depth (Huang et al., ECCV 2016) leaves out what a residual block adds, for whole images; dropout of channels
(Tompson et al., CVPR 2015) does so for single maps of it. What stays is scaled up, so the expected sum is the same.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from segtailor.core.errors import UserError
from segtailor.core.plan import Plan
from segtailor.ops import Sum


def residual_bodies(plan: Plan) -> tuple[str, ...]:
    """Return the nodes that a sum adds to a map they were computed from, in order."""
    behind: dict[str, frozenset[str]] = {}
    found = []
    for node in plan.nodes:
        behind[node.name] = frozenset(node.inputs).union(*(behind.get(name, ()) for name in node.inputs))
        if isinstance(plan.call(node.name).op, Sum):
            found += [
                name
                for name in node.inputs
                if any(other in behind.get(name, ()) for other in node.inputs if other != name)
            ]
    return tuple(found)


def drop_in_training(network: nn.Module, *, depth: float, channels: float) -> None:
    """Let a network leave out residual bodies by `depth` (the last; the first almost never) and their `channels`."""
    if not depth and not channels:
        return
    plan = getattr(network, "plan", None)
    bodies = residual_bodies(plan) if isinstance(plan, Plan) else ()
    if not bodies:
        raise UserError(
            "stochastic_depth and dropout leave out what residual sums add, and this network has no such sums; "
            "leave them out."
        )
    for number, name in enumerate(bodies, start=1):
        share = depth * number / len(bodies)
        network.nodes[name].register_forward_hook(partial(_drop, depth=share, channels=channels))  # type: ignore[index, union-attr]


def _drop(module: nn.Module, _: object, maps: Tensor, *, depth: float, channels: float) -> Tensor:
    if not module.training:
        return maps
    for share, width in ((depth, 1), (channels, maps.shape[1])):
        if share:
            kept = torch.rand((len(maps), width, 1, 1), device=maps.device) >= share
            maps = maps * (kept / (1 - share)).to(maps.dtype)
    return maps

"""From an architecture to a network: which outputs it computes, and a bound on its size. Weights are left to others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from segtailor.core.codec import short
from segtailor.core.errors import InvalidArchitecture
from segtailor.core.plan import MAIN, Plan, Shape
from segtailor.core.space import Architecture, plan_of
from segtailor.nets.network import Network

LARGEST = 1_000_000_000  # parameters: a description from outside must not make us allocate more


def build(arch: Architecture, classes: int, *, outputs: Any) -> Network:
    """Build a network that computes `outputs` ("all", or names), refusing sizes beyond reason before allocating."""
    full = plan_of(arch, Shape(3, 512, 1024), classes)
    plan = full.select(_chosen(full, outputs))
    if plan.train_params() > LARGEST:
        raise InvalidArchitecture(
            f"the network would have {plan.train_params():,} parameters; at most {LARGEST:,} are built. Shrink it."
        )
    return Network(plan, architecture=arch)


def _chosen(full: Plan, outputs: Any) -> tuple[str, ...]:
    """Return the names of the outputs to build, the main one among them."""
    if outputs == "all":
        return tuple(full.outputs)
    names = [outputs] if isinstance(outputs, str) else outputs
    allowed = tuple(full.outputs)
    if not isinstance(names, Sequence) or MAIN not in names or any(name not in allowed for name in names):
        raise InvalidArchitecture(
            f"outputs: {short(outputs)}; allowed: 'all', or '{MAIN}' and any of {', '.join(allowed)}."
        )
    return tuple(dict.fromkeys(names))

"""How much each group of decisions can change the cost, and the shares in the cost term that balance them.

FasterSeg (section 3.3, Table 2 and footnote 1) compares the supernet that takes the slowest options of one group with
the one that takes the fastest, the other groups left neutral, and chooses shares that are inversely proportional to
these differences. Here the differences come from the prices at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from segtailor.core.space import Decision, Group
from segtailor.nets.relax import Weights

ROUNDS = 8  # of choosing every option anew: ends a search for the extreme that does not settle
NEGLIGIBLE = 1e-9  # of the greatest influence: a group with less changes nothing that could be charged


def influences(
    decisions: Sequence[Decision],
    neutral: Weights,
    cost: Callable[[Weights], Tensor],
    *,
    free: Sequence[str],
) -> dict[Group, float]:
    """Return by group the cost of its slowest options less that of its fastest, in the unit of `cost`.

    `neutral` holds weights of all decisions; only those named in `free` can change.
    """
    found: dict[Group, float] = {}
    for group in dict.fromkeys(row.group for row in decisions):
        names = [row.name for row in decisions if row.group == group and row.name in free]
        if names:
            slowest, fastest = (_extreme(names, neutral, cost, largest=largest) for largest in (True, False))
            found[group] = slowest - fastest
    return found


def balanced(changes: Mapping[Group, float]) -> dict[Group, float]:
    """Return shares that sum to 1 and give every group the same influence; a group without influence has none."""
    most = max(changes.values(), default=0.0)
    counted = {group: change for group, change in changes.items() if change > NEGLIGIBLE * most}
    total = sum(1 / change for change in counted.values())
    return {group: 1 / counted[group] / total if group in counted else 0.0 for group in changes}


def _extreme(
    names: Sequence[str], neutral: Weights, cost: Callable[[Weights], Tensor], *, largest: bool
) -> float:
    """Return the largest or smallest cost when every named decision takes one option.

    The cost is linear in each decision, so its gradient says which option of each is the extreme one; as decisions
    interact, that is repeated from the options found until nothing changes.
    """
    sign = 1.0 if largest else -1.0
    weights = {name: row.detach().clone() for name, row in neutral.items()}
    best = -torch.inf
    for _ in range(ROUNDS):
        rows = {name: weights[name].clone().requires_grad_() for name in names}
        gradients = torch.autograd.grad(cost({**weights, **rows}), list(rows.values()), allow_unused=True)
        moved = dict(weights)
        for name, gradient in zip(names, gradients, strict=True):
            if gradient is not None:
                option = int((sign * gradient).argmax())
                moved[name] = torch.eye(len(gradient), device=gradient.device)[option]
        with torch.no_grad():
            value = sign * cost(moved).item()
        if value <= best:
            break
        best, weights = value, moved
    return sign * best

"""Trade-offs between quality and cost: dominance, the Pareto front, ranks and crowding (NSGA-II, Deb et al. 2002)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from segtailor.core.strategy import Judged


def dominates(one: Judged, other: Judged) -> bool:
    """Tell whether `one` is no worse in quality and cost, and better in one; finished trials dominate others."""
    if one.done != other.done:
        return one.done
    no_worse = one.quality >= other.quality and one.cost <= other.cost
    return no_worse and (one.quality > other.quality or one.cost < other.cost)


def pareto(judged: Sequence[Judged]) -> list[Judged]:
    """Return the finished trials that no other dominates, cheapest first; of equal ones the first."""
    front: list[Judged] = []
    for item in sorted((item for item in judged if item.done), key=lambda item: (item.cost, -item.quality)):
        if not front or item.quality > front[-1].quality:
            front.append(item)
    return front


def layers(judged: Sequence[Judged]) -> list[list[int]]:
    """Sort indices into fronts: the first is dominated by none, the second only by the first, and so on."""
    # How many of the items that are left dominate each.
    dominated_by = [sum(dominates(other, item) for other in judged) for item in judged]
    fronts: list[list[int]] = []
    left = set(range(len(judged)))
    while left:
        layer = sorted(index for index in left if dominated_by[index] == 0)
        fronts.append(layer)
        left -= set(layer)
        for index in left:
            dominated_by[index] -= sum(dominates(judged[winner], judged[index]) for winner in layer)
    return fronts


def crowding(judged: Sequence[Judged], layer: Sequence[int]) -> dict[int, float]:
    """Return the crowding distance of each member of a layer: infinite at both ends, small where it is crowded."""
    distance = dict.fromkeys(layer, 0.0)
    for values in ({i: judged[i].quality for i in layer}, {i: judged[i].cost for i in layer}):
        order = sorted(layer, key=lambda index: (values[index], index))
        spread = values[order[-1]] - values[order[0]]
        distance[order[0]] = distance[order[-1]] = math.inf
        if not spread > 0 or math.isinf(spread):
            continue
        for before, index, after in zip(order, order[1:], order[2:], strict=False):
            distance[index] += (values[after] - values[before]) / spread
    return distance


def survivors(judged: Sequence[Judged], count: int) -> list[Judged]:
    """Return the best `count`, best first: by layer, then by crowding distance, then by age."""
    order: list[int] = []
    for layer in layers(judged):
        distance = crowding(judged, layer)
        order += sorted(layer, key=lambda index: (-distance[index], index))
    return [judged[index] for index in order[:count]]

"""Where the nodes of a plan go on paper: columns by depth, bands by stride, lanes within a band."""

from __future__ import annotations

import math
from dataclasses import dataclass

from segtailor.core.plan import IMAGE, Plan


@dataclass(frozen=True, kw_only=True)
class NodePlace:
    """Column (depth from the image), band (binary logarithm of the stride) and lane of a node."""

    column: int
    band: int
    lane: int


def arrange(plan: Plan) -> dict[str, NodePlace]:
    """Place every node: it stays in its first input's lane where that is free, else in the nearest free one."""
    columns = {IMAGE: 0}
    places = {IMAGE: NodePlace(column=0, band=0, lane=0)}
    taken: set[tuple[int, int, int]] = {(0, 0, 0)}
    for node in plan.nodes:
        column = 1 + max(columns[name] for name in node.inputs)
        columns[node.name] = column
        band = _band(plan, node.name)
        near = [places[name].lane for name in node.inputs if places[name].band == band]
        lane = _free_lane(taken, column, band, wanted=near[0] if near else 0)
        taken.add((column, band, lane))
        places[node.name] = NodePlace(column=column, band=band, lane=lane)
    return places


def lanes_per_band(places: dict[str, NodePlace]) -> dict[int, int]:
    """Return how many lanes each band needs, bands in order of stride."""
    lanes: dict[int, int] = {}
    for place in places.values():
        lanes[place.band] = max(lanes.get(place.band, 0), place.lane + 1)
    return dict(sorted(lanes.items()))


def _band(plan: Plan, name: str) -> int:
    return max(0, round(math.log2(plan.image.height / plan.shape(name).height)))


def _free_lane(taken: set[tuple[int, int, int]], column: int, band: int, *, wanted: int) -> int:
    for distance in range(10_000):
        for lane in (wanted - distance, wanted + distance):
            if lane >= 0 and (column, band, lane) not in taken:
                return lane
    raise ValueError("a plan with ten thousand parallel nodes cannot be drawn")

"""Latency by layer: the price of every node of a plan beside what was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from segtailor.core.plan import OpCall, Plan
from segtailor.core.registry import OPERATORS
from segtailor.report.document import LayerTime, LayerTimes


def layer_times(
    plan: Plan,
    *,
    price: Callable[[OpCall], float] | None = None,
    measured: Mapping[str, float] | None = None,
    measured_ms: float | None = None,
    note: str = "",
) -> LayerTimes:
    """Return the layers that inference runs: `price` estimates milliseconds, `measured` holds them by node.

    The estimate of the whole is the sum of the prices; `measured_ms` is the measured whole network.
    """
    deployed, seen = plan.deployed(), measured or {}
    prices = {node.name: price(deployed.call(node.name)) for node in deployed.nodes} if price else {}
    rows = tuple(
        LayerTime(
            name=node.name,
            operator=OPERATORS.name_of(type(node.op)).replace("_", " "),
            estimated_ms=prices.get(node.name),
            measured_ms=seen.get(node.name),
        )
        for node in deployed.nodes
    )
    estimated = sum(prices.values()) if prices else None
    return LayerTimes(layers=rows, estimated_ms=estimated, measured_ms=measured_ms, note=note)

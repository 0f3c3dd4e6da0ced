"""Latency predicted from the work of a network, with prices fitted to a few whole networks that were timed.

A device pack times every operator of a space, which takes minutes. This needs only a dozen networks, and knows less: a
handful of prices that hold for any operator. `sampling` times the networks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from segtailor.core.errors import UserError
from segtailor.core.plan import OpCall, Plan
from segtailor.core.statistics import non_negative_fit
from segtailor.costs.pack import Checked, Trust
from segtailor.costs.trust import MeasuredNetwork, judge
from segtailor.costs.work import Work, total, work_of

US_PER_MS = 1000.0
MIN_NETWORKS = 3  # that prices are fitted to
NETWORKS_PER_PRICE = 2  # at least, of laws with more than two prices
REWEIGHTING_ROUNDS = 20
MIN_RELATIVE_ERROR = 0.01  # smaller errors all get the same weight
KINDS = tuple(item.name for item in fields(Work))
# Kinds of work that are priced together, from the simplest law to the richest; leave-one-out decides.
LAWS: tuple[tuple[tuple[str, ...], ...], ...] = (
    (("dense", "pointwise", "depthwise"),),
    (("dense", "pointwise", "depthwise"), ("kernels",)),
    (("moved", "resized", "joined"), ("kernels",)),
    (("dense", "pointwise", "depthwise"), ("kernels",), ("moved", "resized", "joined")),
    (("dense", "pointwise"), ("depthwise",), ("kernels",), ("moved", "resized", "joined")),
    (("dense",), ("pointwise",), ("depthwise",), ("kernels",), ("moved",), ("resized", "joined")),
    tuple((kind,) for kind in KINDS),
)


@dataclass(frozen=True, kw_only=True)
class FittedLatency:
    """Milliseconds of a network on a target, predicted from its work; additive over calls.

    `us` are the microseconds of one kernel, and of a million multiply-accumulates or values of each kind.
    """

    target: str
    us: Work
    unit: ClassVar[str] = "ms"

    def __post_init__(self) -> None:
        prices = self.us.numbers()
        if not all(0 <= price < float("inf") for price in prices) or not any(prices):
            raise UserError(
                f"fitted latency: prices {prices} must be finite, not negative, and not all zero; fit them again."
            )

    def price(self, call: OpCall) -> float:
        """Return the milliseconds of one call."""
        return work_of(call).times(self.us) / US_PER_MS

    def scaled(self, ratio: float, *, target: str) -> FittedLatency:
        """Return the prices for a target on which every network takes so many times as long."""
        us = Work(**{kind: round(ratio * getattr(self.us, kind), 6) for kind in KINDS})
        return FittedLatency(target=target, us=us)

    def of(self, plan: Plan) -> float:
        """Return the milliseconds of the deployed plan."""
        return sum(map(self.price, plan.calls))


def plan_work(plan: Plan) -> Work:
    """Return the work of a deployed plan."""
    return total([Work(), *map(work_of, plan.calls)])


def fit_latency(networks: Sequence[MeasuredNetwork], *, target: str) -> tuple[FittedLatency, Trust]:
    """Fit prices to networks that were timed; the report predicts each of them from all others.

    The law (which kinds of work share a price) is the one with the smallest error of that kind.
    """
    if len(networks) < MIN_NETWORKS:
        raise UserError(
            f"{len(networks)} timed networks are too few for prices; time at least {MIN_NETWORKS}."
        )
    work = np.array([plan_work(one.plan).numbers() for one in networks])
    measured = US_PER_MS * np.array([one.low_ms for one in networks])
    laws = [law for law in LAWS if len(law) <= max(2, len(networks) // NETWORKS_PER_PRICE)]
    predicted = {law: _leave_one_out(_columns(work, law), measured) for law in laws}
    law = min(laws, key=lambda law: float(np.mean(np.abs(predicted[law] / measured - 1))))
    prices = dict(zip(law, _fit(_columns(work, law), measured), strict=True))
    us = Work(**{kind: round(float(price), 6) for group, price in prices.items() for kind in group})
    rows = [
        Checked(
            fingerprint=one.fingerprint,
            predicted_ms=round(float(value) / US_PER_MS, 5),
            measured_ms=round(one.low_ms, 5),
            median_ms=round(one.median_ms, 5),
        )
        for one, value in zip(networks, predicted[law], strict=True)
    ]
    return FittedLatency(target=target, us=us), judge(rows)


def _columns(work: NDArray[np.float64], law: tuple[tuple[str, ...], ...]) -> NDArray[np.float64]:
    """Add up the kinds of work that share a price."""
    return np.column_stack([work[:, [KINDS.index(kind) for kind in group]].sum(axis=1) for group in law])


def _leave_one_out(work: NDArray[np.float64], measured: NDArray[np.float64]) -> NDArray[np.float64]:
    """Predict each network from prices that are fitted to all others."""
    rows = range(len(measured))
    return np.array([work[row] @ _fit(np.delete(work, row, 0), np.delete(measured, row)) for row in rows])


def _fit(work: NDArray[np.float64], measured: NDArray[np.float64]) -> NDArray[np.float64]:
    """Fit prices that are not negative and minimise the sum of absolute relative errors.

    Absolute errors (by re-weighted least squares) instead of squares, because a few networks that other programs
    disturbed must not outweigh all others.
    """
    relative = work / measured[:, None]
    weights = np.ones(len(measured))
    prices = non_negative_fit(relative, weights)
    for _ in range(REWEIGHTING_ROUNDS):
        errors = np.abs(relative @ prices - 1)
        weights = 1 / np.sqrt(np.maximum(errors, MIN_RELATIVE_ERROR))
        prices = non_negative_fit(relative * weights[:, None], weights)
    return prices

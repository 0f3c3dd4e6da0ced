"""How far table prices can be trusted: correction from whole networks, correlation, error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from segtailor.core.plan import Plan
from segtailor.costs.estimate import non_negative_fit
from segtailor.costs.pack import DISTURBED, Checked, Correction, Pack, Trust
from segtailor.costs.table import LatencyTable

FEWEST = 3  # undisturbed networks to fit on
ROUNDS = 30  # of re-weighting
OFF = 1.15  # times the price that a network may take now without the prices being changed
DISAGREEING = 2.0  # between the ratios of two networks: then one factor does not mend a pack,
MORE_DISAGREEING = 1.5  # unless they differed nearly as much when it was made: then a new one is no better
EXACT = 1e-3  # a relative error that cannot be told from none


class Seen(NamedTuple):
    """A network that was measured whole."""

    fingerprint: str
    plan: Plan
    low_ms: float
    median_ms: float


def corrected(pack: Pack, networks: Sequence[Seen]) -> Pack:
    """Return the pack with a correction fitted on these networks; as it is, if there are none.

    Networks that other programs disturbed are left out where enough remain.
    """
    if not networks:
        return pack
    quiet = [one for one in networks if one.median_ms <= DISTURBED * one.low_ms]
    networks = quiet if len(quiet) >= FEWEST else networks
    table = LatencyTable(pack=replace(pack, correction=Correction()))
    found = [[entry for call in one.plan.calls for entry in table.entries(call)] for one in networks]
    correction = fit_correction(
        [sum(entry.us for entry in entries) for entries in found],
        [sum(entry.kernels for entry in entries) for entries in found],
        [1000 * one.low_ms for one in networks],
    )
    return replace(pack, correction=correction)


def judged(pack: Pack, networks: Sequence[Seen]) -> Pack:
    """Return the pack with a trust report on these networks; as it is, if there are none."""
    if not networks:
        return pack
    table = LatencyTable(pack=pack)
    rows = [
        Checked(
            fingerprint=one.fingerprint,
            predicted_ms=round(table.of(one.plan), 5),
            measured_ms=round(one.low_ms, 5),
            median_ms=round(one.median_ms, 5),
        )
        for one in networks
    ]
    return replace(pack, trust=judge(rows))


class Recheck(NamedTuple):
    """How the prices of a pack compare with networks measured now: `ratio` is measured over price, in the middle.

    `decision` is what follows: the pack fits, all its prices are off by one factor, or it must be made anew.
    """

    ratio: float
    spread: float
    decision: Literal["fits", "scale", "renew"]


def recheck(pack: Pack, networks: Sequence[Seen]) -> Recheck:
    """Compare prices with networks that were measured now: a pack may be of a busier or a quieter time."""
    table = LatencyTable(pack=pack)
    ratios = [one.low_ms / table.of(one.plan) for one in networks]
    ratio, spread = float(np.median(ratios)), max(ratios) / min(ratios)
    before = [one.measured_ms / one.predicted_ms for one in pack.trust.networks] if pack.trust else [1.0]
    if spread > max(DISAGREEING, MORE_DISAGREEING * max(before) / min(before)):
        return Recheck(ratio, spread, "renew")
    return Recheck(ratio, spread, "fits" if 1 / OFF <= ratio <= OFF else "scale")


def scaled(pack: Pack, ratio: float) -> Pack:
    """Return the pack with every price times a ratio."""
    before = pack.correction
    after = Correction(slope=ratio * before.slope, per_kernel_us=ratio * before.per_kernel_us)
    return replace(pack, correction=after, trust=None)


def fit_correction(
    sums_us: Sequence[float], kernels: Sequence[int], measured_us: Sequence[float]
) -> Correction:
    """Fit factor and overhead per kernel so that absolute relative errors are least; neither is ever negative.

    Absolute errors, by re-weighted least squares: a few networks that other programs disturbed must not count more
    than all that they left alone.
    """
    target = np.asarray(measured_us, dtype=float)
    features = np.column_stack([sums_us, kernels]).astype(float) / target[:, None]
    weights = np.ones(len(target))
    for _ in range(ROUNDS):
        slope, overhead = non_negative_fit(features * weights[:, None], weights)
        errors = np.abs(features @ [slope, overhead] - 1)
        weights = 1 / np.sqrt(np.maximum(errors, EXACT))
    if slope <= 0:  # networks too alike to tell: one factor for all
        slope, overhead = float(np.median(target / np.asarray(sums_us))), 0.0
    return Correction(slope=round(float(slope), 6), per_kernel_us=round(float(overhead), 6))


def judge(networks: Sequence[Checked]) -> Trust:
    """Compare predicted with measured."""
    predicted = np.array([network.predicted_ms for network in networks])
    measured = np.array([network.measured_ms for network in networks])
    return Trust(
        pearson=round(pearson(predicted, measured), 5),
        spearman=round(pearson(_ranks(predicted), _ranks(measured)), 5),
        mape=round(float(np.mean(np.abs(predicted / measured - 1))), 5),
        networks=tuple(networks),
    )


def pearson(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Return the correlation; 0 where one side does not vary."""
    if len(first) < 2 or not np.ptp(first) or not np.ptp(second):
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ranks, equal values sharing the mean of theirs."""
    order = np.sort(values)
    left, right = np.searchsorted(order, values, "left"), np.searchsorted(order, values, "right")
    return (left + right - 1) / 2

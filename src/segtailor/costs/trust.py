"""How well table prices agree with whole networks: correction, correlation, error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from segtailor.core.plan import Plan
from segtailor.core.statistics import non_negative_fit, pearson, spearman
from segtailor.costs.pack import DISTURBED_RATIO, Checked, Correction, LatencyTable, Pack, Trust

MIN_UNDISTURBED = 3  # networks; with fewer, disturbed ones are fitted on as well
REWEIGHTING_ROUNDS = 30
MIN_RELATIVE_ERROR = 1e-3  # smaller errors all get the same weight
MAX_RATIO = 1.15  # of measured time to price, or its inverse: beyond this, prices are scaled

# The spread of a recheck is the largest over the smallest ratio of measured time to price. Beyond MAX_SPREAD one factor
# cannot repair a pack and it must be made again; but not if it had nearly the same spread when it was made.
MAX_SPREAD = 2.0
MAX_SPREAD_GROWTH = 1.5


class MeasuredNetwork(NamedTuple):
    """A whole network with its measured milliseconds: fastest run and median."""

    fingerprint: str
    plan: Plan
    low_ms: float
    median_ms: float


def with_correction(pack: Pack, networks: Sequence[MeasuredNetwork]) -> Pack:
    """Return the pack with a correction fitted on these networks; unchanged if there are none.

    Networks that other programs disturbed are left out if enough others remain.
    """
    if not networks:
        return pack
    undisturbed = [one for one in networks if one.median_ms <= DISTURBED_RATIO * one.low_ms]
    networks = undisturbed if len(undisturbed) >= MIN_UNDISTURBED else networks
    table = LatencyTable(pack=replace(pack, correction=Correction()))
    entries = [[entry for call in one.plan.calls for entry in table.entries(call)] for one in networks]
    correction = fit_correction(
        [sum(entry.us for entry in row) for row in entries],
        [sum(entry.kernels for entry in row) for row in entries],
        [1000 * one.low_ms for one in networks],
    )
    return replace(pack, correction=correction)


def with_trust(pack: Pack, networks: Sequence[MeasuredNetwork]) -> Pack:
    """Return the pack with a trust report on these networks; unchanged if there are none."""
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
    """How the prices of a pack compare with networks measured now: `ratio` is the median of measured time over price.

    `decision`: the pack fits, all its prices are wrong by one factor, or it must be made again.
    """

    ratio: float
    spread: float
    decision: Literal["fits", "scale", "renew"]


def recheck(pack: Pack, networks: Sequence[MeasuredNetwork]) -> Recheck:
    """Compare prices with networks that were measured now: the machine may have been busier when the pack was made."""
    table = LatencyTable(pack=pack)
    ratios = [one.low_ms / table.of(one.plan) for one in networks]
    ratio, spread = float(np.median(ratios)), max(ratios) / min(ratios)
    before = [one.measured_ms / one.predicted_ms for one in pack.trust.networks] if pack.trust else [1.0]
    if spread > max(MAX_SPREAD, MAX_SPREAD_GROWTH * max(before) / min(before)):
        return Recheck(ratio, spread, "renew")
    return Recheck(ratio, spread, "fits" if 1 / MAX_RATIO <= ratio <= MAX_RATIO else "scale")


def with_scaled_prices(pack: Pack, ratio: float) -> Pack:
    """Return the pack with every price times a ratio."""
    before = pack.correction
    after = Correction(slope=ratio * before.slope, per_kernel_us=ratio * before.per_kernel_us)
    return replace(pack, correction=after, trust=None)


def fit_correction(
    sums_us: Sequence[float], kernels: Sequence[int], measured_us: Sequence[float]
) -> Correction:
    """Fit a factor and an overhead per kernel, neither negative, that minimise the sum of absolute relative errors.

    Absolute errors (by re-weighted least squares) instead of squares, because a few networks that other programs
    disturbed must not outweigh all others.
    """
    target = np.asarray(measured_us, dtype=float)
    features = np.column_stack([sums_us, kernels]).astype(float) / target[:, None]
    weights = np.ones(len(target))
    for _ in range(REWEIGHTING_ROUNDS):
        slope, overhead = non_negative_fit(features * weights[:, None], weights)
        errors = np.abs(features @ [slope, overhead] - 1)
        weights = 1 / np.sqrt(np.maximum(errors, MIN_RELATIVE_ERROR))
    if slope <= 0:  # the networks are too similar: one factor for all
        slope, overhead = float(np.median(target / np.asarray(sums_us))), 0.0
    return Correction(slope=round(float(slope), 6), per_kernel_us=round(float(overhead), 6))


def judge(networks: Sequence[Checked]) -> Trust:
    """Compare predicted with measured times; a correlation that is not defined counts as 0."""
    predicted = np.array([network.predicted_ms for network in networks])
    measured = np.array([network.measured_ms for network in networks])
    return Trust(
        pearson=round(pearson(predicted, measured) or 0.0, 5),
        spearman=round(spearman(predicted, measured) or 0.0, 5),
        mape=round(float(np.mean(np.abs(predicted / measured - 1))), 5),
        networks=tuple(networks),
    )

"""How well table prices agree with whole networks: correction, correlation, error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from segtailor.core.plan import Plan
from segtailor.core.statistics import non_negative_fit, pearson, spearman
from segtailor.costs.pack import DISTURBED_RATIO, Checked, Correction, LatencyTable, Pack, Trust

MIN_UNDISTURBED = 3  # networks; with fewer, disturbed ones are fitted on as well
REWEIGHTING_ROUNDS = 30
MIN_RELATIVE_ERROR = 1e-3  # smaller errors all get the same weight


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

"""Correlations and least squares for costs and search strategies; numpy is enough for these few lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Values: TypeAlias = Sequence[float] | NDArray[np.float64]


def pearson(first: Values, second: Values) -> float | None:
    """Return Pearson's correlation; None if there are fewer than two values or one side does not vary."""
    if len(first) < 2 or not np.ptp(first) or not np.ptp(second):
        return None
    return float(np.corrcoef(first, second)[0, 1])


def spearman(first: Values, second: Values) -> float | None:
    """Return Spearman's rank correlation; None where `pearson` is None."""
    return pearson(ranks(first), ranks(second))


def ranks(values: Values) -> NDArray[np.float64]:
    """Return the rank of each value, from 0; equal values share the mean of their ranks."""
    ordered = np.sort(values)
    left, right = np.searchsorted(ordered, values, "left"), np.searchsorted(ordered, values, "right")
    return (left + right - 1) / 2


def non_negative_fit(features: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """Fit by least squares without negative coefficients: drop the column of the most negative one until none is."""
    columns = list(range(features.shape[1]))
    coefficients = np.zeros(features.shape[1])
    while columns:
        solution = np.linalg.lstsq(features[:, columns], target, rcond=None)[0]
        worst = int(np.argmin(solution))
        if solution[worst] >= 0:
            coefficients[columns] = solution
            break
        del columns[worst]
    return coefficients

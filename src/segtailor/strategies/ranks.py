"""Rank correlation: do two judges put architectures in the same order?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation; equal values share a rank. None where it is not defined."""
    if len(first) < 2 or len(set(first)) < 2 or len(set(second)) < 2:
        return None
    return float(np.corrcoef(_ranks(first), _ranks(second))[0, 1])


def _ranks(values: Sequence[float]) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    below = (array[None] < array[:, None]).sum(1)
    equal = (array[None] == array[:, None]).sum(1)
    ranks: NDArray[np.float64] = below + (equal - 1) / 2
    return ranks

"""Paths through the supernet's layers: at which layers a branch halves its resolution."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, product
from typing import TypeAlias

Path: TypeAlias = tuple[int, ...]  # the layers with stride 2, in order

RATES = (8, 16, 32)  # downsampling rates, by scale index


def paths(layers: int, end: int) -> tuple[Path, ...]:
    """Return every path from rate 8 to `end`; the last layer never halves."""
    return tuple(combinations(range(layers - 1), RATES.index(end)))


def allowed_paths(layers: int, end: int) -> tuple[Path, ...]:
    """Return the paths that the derivation considers, in its order.

    To 16: not at layer 0, and four layers from the end at the latest. To 32: at least two stride-1 layers at each rate.
    """
    if end == 8:
        return ((),)
    if end == 16:
        return tuple((layer,) for layer in range(1, layers - 3))
    return tuple((first, second) for second in range(layers - 2) for first in range(2, second - 2))


def path_pairs(
    layers: int, listing: Callable[[int, int], tuple[Path, ...]] = paths
) -> tuple[tuple[Path, Path], ...]:
    """Return all pairs of paths to two different rates: 1695 of them over 16 layers (FasterSeg section 3.1)."""
    return tuple(
        (finer, coarser)
        for one, other in combinations(RATES, 2)
        for finer, coarser in product(listing(layers, one), listing(layers, other))
    )


def minimum_length(layers: int, end: int) -> int:
    """Return the fewest cells of a branch that ends at `end`, whatever is skipped."""
    return round(layers / 3) + 2 * RATES.index(end)


def scales(path: Path, layers: int) -> tuple[int, ...]:
    """Return the scale index (0, 1, 2 for rates 8, 16, 32) at which each layer reads."""
    return tuple(sum(stride < layer for stride in path) for layer in range(layers))

"""From continuous search results to a network: paths, widths, operators, removal of skips (FasterSeg section 3.4).

Where paper and release differ this follows the release, since the published networks came from it: the branch to rate
16 halves one layer before the one its score belongs to, paths are restricted, and skips are removed down to a minimum
length. Scores are plain nested lists; nothing passed in is changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from typing import Literal, TypeAlias

from segtailor.core.errors import InvalidArchitecture
from segtailor.spaces.multi_resolution.architecture import (
    CELL_OPERATORS,
    RATES,
    Branch,
    BranchCell,
    MultiResolutionArchitecture,
)

Rows: TypeAlias = Sequence[Sequence[float]]
Path: TypeAlias = tuple[int, ...]  # the layers at which a branch halves its resolution, in order
SKIP = 0  # the first operator of the alpha vector: removed from a derived network
BARRED = -math.inf


@dataclass(frozen=True, kw_only=True)
class ArchitectureScores:
    """Raw architecture parameters of one set, by scale index; row `l - j` of `operators[j]` is the cell of layer `l`.

    `entries[j - 1]` row `l - j - 1` weighs the inputs of cell (l, j): column 0 from the finer scale, column 1 from the
    same. `widths[0]` row `l` is the connection from layer `l` to `l + 1` at rate 8; `widths[j]` row `l - j` is what
    arrives at cell (l, j).
    """

    operators: tuple[Rows, ...]
    entries: tuple[Rows, ...]
    widths: tuple[Rows, ...]

    def __post_init__(self) -> None:
        layers, levels = len(self.operators[0]), range(len(self.operators))
        wanted = {
            "operators": (self.operators, tuple(layers - level for level in levels)),
            "entries": (self.entries, tuple(layers - level - 1 for level in levels[1:])),
            "widths": (self.widths, tuple(layers - max(level, 1) for level in levels)),
        }
        for field, (arrays, lengths) in wanted.items():
            given = tuple(len(rows) for rows in arrays)
            if given != lengths:
                raise InvalidArchitecture(f"scores.{field}: {given} rows; {layers} layers need {lengths}.")


@dataclass(frozen=True, kw_only=True)
class Derivation:
    """How scores become a network. A single ratio stands for every connection; `ignore_skip` keeps all layers.

    `path16` "consistent" halves the branch to 16 at the layer that its score belongs to, as the branch to 32 does.
    """

    ends: tuple[int, ...] = (32, 16)
    ratios: tuple[int, ...] = (4, 6, 8, 10, 12)
    stem_ratio: int = 8
    head_ratio: int = 8
    ignore_skip: bool = False
    path16: Literal["release", "consistent"] = "release"


def derive(scores: ArchitectureScores, how: Derivation) -> MultiResolutionArchitecture:
    """Return the network that a set of scores stands for."""
    # One copy for all end rates, in the release's order: a skip barred for one branch stays barred for the next.
    operators = [[list(row) for row in rows] for rows in scores.operators]
    branches: dict[int, Branch] = {}
    for end in RATES[: len(operators)]:
        path = best_path(scores.entries, end, path16=how.path16)
        layers = len(operators[0])
        along = scales(path, layers)
        rows = [operators[scale][layer - scale] for layer, scale in enumerate(along)]
        if how.ignore_skip:
            for row in rows:
                row[SKIP] = BARRED
        kept = kept_operators(rows, path)
        ratios = _ratios(scores.widths, along, how.ratios)
        branches[end] = compact(kept, ratios, path, head_ratio=how.head_ratio)
    return MultiResolutionArchitecture(
        branches=tuple(branches[end] for end in how.ends),
        stem_ratio=how.stem_ratio,
        head_ratio=how.head_ratio,
    )


def best_path(entries: tuple[Rows, ...], end: int, *, path16: str = "release") -> Path:
    """Return the allowed path to `end` whose halvings score best together; the first of equals."""
    if end == RATES[0]:
        return ()
    layers = len(entries[0]) + 2
    from_finer = [[softmax(row)[0] for row in rows] for rows in entries]
    late = 0 if path16 == "release" else 1

    def score(path: Path) -> float:
        if len(path) == 1:
            return from_finer[0][path[0]]
        return math.prod(from_finer[scale][stride - scale - 1] for scale, stride in enumerate(path))

    best = max(allowed_paths(layers, end), key=score)
    return tuple(stride + late for stride in best) if end == 16 else best


def kept_operators(rows: list[list[float]], path: Path) -> list[int | None]:
    """Choose the operator of each layer on a path, `None` where the layer is removed; bars skips in `rows`.

    A layer of stride 2 is never removed, nor are all layers between two of them (or the last one and the end), nor
    more than the minimum length permits; those with the surest skips go first.
    """
    layers = len(rows)
    skips = [softmax(row)[SKIP] for row in rows]
    candidates = [layer for layer in range(layers) if _top(rows[layer]) == SKIP and layer not in path]
    for start, stop in pairwise((*path, layers)):
        between = range(start + 1, stop)
        if between and all(layer in candidates for layer in between):
            spared = min(between, key=lambda layer: (skips[layer], -layer))
            rows[spared][SKIP] = BARRED
    most = layers - minimum_length(layers, RATES[len(path)])
    removable = sorted(candidates, key=lambda layer: -skips[layer])[:most]
    chosen: list[int | None] = []
    for layer, row in enumerate(rows):
        if _top(row) == SKIP and layer in removable:
            chosen.append(None)
            continue
        if _top(row) == SKIP:
            row[SKIP] = BARRED
        chosen.append(_top(row))
    return chosen


def compact(operators: Sequence[int | None], ratios: Sequence[int], path: Path, *, head_ratio: int) -> Branch:
    """Write the branch that is left without removed layers; `ratios[l]` belongs to the connection after layer `l`."""
    kept = [(layer, operator) for layer, operator in enumerate(operators) if operator is not None]
    last = kept[-1][0]
    return tuple(
        BranchCell(
            operator=CELL_OPERATORS[operator - 1],
            ratio=head_ratio if layer == last else ratios[layer],
            stride=2 if layer in path else 1,
        )
        for layer, operator in kept
    )


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


def softmax(row: Sequence[float]) -> list[float]:
    """Return the softmax of one row."""
    top = max(row)
    powers = [math.exp(value - top) for value in row]
    total = sum(powers)
    return [power / total for power in powers]


def _ratios(widths: tuple[Rows, ...], along: Sequence[int], ratios: tuple[int, ...]) -> list[int]:
    """Return the ratio of each connection on a path: the one after layer `l` has the scale of layer `l + 1`."""
    chosen = []
    for layer, scale in enumerate(along[1:], start=1):
        row = widths[scale][layer - max(scale, 1)]
        if len(row) != len(ratios):
            raise InvalidArchitecture(
                f"scores.widths: a row has {len(row)} values; allowed: {len(ratios)}, one per ratio {list(ratios)}."
            )
        chosen.append(ratios[_top(row)])
    return chosen


def _top(row: Sequence[float]) -> int:
    return max(range(len(row)), key=lambda index: row[index])

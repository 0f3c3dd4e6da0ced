"""AutoRTNet, Table 4: searches from other first depths and with other seeds should end at similar depths.

    python -m benchmarks.autortnet_robustness 1 --data synthetic --out RUN             # row 1 of 6
    python -m benchmarks.autortnet_robustness 3 --scale paper --data cityscapes:PATH --out RUN

The number is the row of the table. `gradient_vs_random.py --parts robustness` runs all rows on synthetic scenes and
prints the table.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from benchmarks.study_runs import SystemStudies
from segtailor.recipes.search import SearchRecipe
from segtailor.systems.system import Scale


class Start(NamedTuple):
    """First depths and seed of one row of Table 4."""

    depths: tuple[int, int, int]
    seed: int


PAPER_STARTS = (
    Start((5, 10, 10), 2),
    Start((5, 10, 15), 2),
    Start((5, 15, 15), 2),
    Start((10, 10, 10), 2),
    Start((5, 10, 10), 1),
    Start((5, 10, 10), 3),
)
SMALL_STARTS = (
    Start((2, 3, 3), 2),
    Start((2, 4, 4), 2),
    Start((2, 3, 3), 1),
    Start((3, 3, 3), 2),
    Start((2, 3, 4), 2),
    Start((2, 3, 3), 3),
)


def other_start(recipe: SearchRecipe, scale: Scale, *, row: int) -> SearchRecipe:
    """Return the search with the first depths and the seed of a row, counted from 0."""
    start = (PAPER_STARTS if scale == "paper" else SMALL_STARTS)[row]
    space: Any = recipe.space
    return replace(
        recipe,
        name=f"autortnet-{'-'.join(map(str, start.depths))}-seed{start.seed}",
        space=replace(space, depths=start.depths),
        seed=start.seed,
    )


STUDIES = SystemStudies(
    system="autortnet",
    studies={str(row + 1): partial(other_start, row=row) for row in range(len(PAPER_STARTS))},
)

if __name__ == "__main__":
    STUDIES.main(__doc__)

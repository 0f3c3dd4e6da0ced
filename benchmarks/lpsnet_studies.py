"""The two design studies of LPS-Net (Tables 2 and 3).

    python -m benchmarks.lpsnet_studies blocks --data synthetic --workers 2 --out RUN            # Table 2
    python -m benchmarks.lpsnet_studies interactions --data synthetic --workers 2 --out RUN      # Table 3

`blocks` compares seven block types, each as wide as the cost of plain convolutions allows. `interactions` compares six
ways for paths to exchange features, and none, in one network. `--scale small` takes minutes on a CPU, `--scale paper`
has the settings of the paper.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from benchmarks.search_strategies import Entrant, Study
from benchmarks.study_runs import SystemStudies
from segtailor.recipes.search import SearchRecipe
from segtailor.spaces.scalable_path import ScalablePathArchitecture
from segtailor.spaces.scalable_path.architecture import BLOCKS, INTERACTIONS
from segtailor.systems.system import Scale

WIDTH = (1, 2, 4, 8, 8)  # C = {c, 2c, 4c, 8c, 8c} of Tables 2 and 3
PAPER_NETWORK = ScalablePathArchitecture(
    depth=(1, 2, 4, 7, 7),
    width=WIDTH,
    resolution=(Fraction(1), Fraction(1, 4)),
    block="conv",
    interaction="none",
)
SMALL_NETWORK = replace(PAPER_NETWORK, depth=(1, 1, 2, 2, 2), resolution=(Fraction(1), Fraction(1, 2)))


def blocks(recipe: SearchRecipe, scale: Scale) -> SearchRecipe:
    """Compare seven block types, each as wide as the cost of plain convolutions allows (Table 2)."""
    network = _network(scale, factor=1)
    entrants = tuple(
        Entrant(name=block, architecture=replace(network, block=block), scaled="width") for block in BLOCKS
    )
    match = _network(scale, factor=14 if scale == "paper" else 8)
    return replace(recipe, name="lpsnet-blocks", strategy=Study(entrants=entrants, match=match))


def interactions(recipe: SearchRecipe, scale: Scale) -> SearchRecipe:
    """Compare six ways for paths to exchange features, and none, in one network (Table 3)."""
    network = _network(scale, factor=16 if scale == "paper" else 4)
    entrants = tuple(
        Entrant(name=kind, architecture=replace(network, interaction=kind)) for kind in INTERACTIONS
    )
    return replace(recipe, name="lpsnet-interactions", strategy=Study(entrants=entrants))


def _network(scale: Scale, *, factor: int) -> ScalablePathArchitecture:
    """Return plain convolutions without interaction, `factor` times the width of Tables 2 and 3."""
    base = PAPER_NETWORK if scale == "paper" else SMALL_NETWORK
    one, two, three, four, five = (factor * channels for channels in base.width)
    return replace(base, width=(one, two, three, four, five))


STUDIES = SystemStudies(system="lpsnet", studies={"blocks": blocks, "interactions": interactions})

if __name__ == "__main__":
    STUDIES.main(__doc__)

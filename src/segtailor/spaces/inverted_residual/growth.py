"""How the family grows: expansion and kernel of one group of blocks at a time. Our choice; no paper has it."""

from __future__ import annotations

from segtailor.core.variation import Coordinates, Direction, Growth
from segtailor.spaces.inverted_residual.architecture import InvertedResidualArchitecture
from segtailor.spaces.inverted_residual.candidates import CANDIDATES, Candidate
from segtailor.spaces.inverted_residual.frames import FRAMES, FrameName

EXPANSIONS = ("skip", "e1_g2", "e1_g1", "e3_g1", "e6_g1")  # ascending in cost
KERNELS = ("k3_d1", "k3_d2", "k5_d1")  # ascending in receptive field, then in cost
START = 1  # the cheapest expansion that computes something


def growth(frame: FrameName) -> Growth:
    """Return the growth of a frame: two directions per group of blocks of one width."""
    blocks = range(len(FRAMES[frame].blocks))
    directions, first = [], 0
    for index, group in enumerate(FRAMES[frame].groups):
        members = range(first, first + group.repeats)
        for part in ("expansion", "kernel"):
            delta = {f"{part}{block}": 1 for block in members}
            directions.append(Direction(name=f"{part} of group {index}", delta=delta))
        first += group.repeats

    def build(place: Coordinates) -> InvertedResidualArchitecture:
        chosen = tuple(
            _candidate(int(place[f"expansion{block}"]), int(place[f"kernel{block}"])) for block in blocks
        )
        return InvertedResidualArchitecture(frame=frame, blocks=chosen)

    top = {f"expansion{block}": len(EXPANSIONS) - 1 for block in blocks}
    top |= {f"kernel{block}": len(KERNELS) - 1 for block in blocks}
    start = {f"expansion{block}": START for block in blocks} | {f"kernel{block}": 0 for block in blocks}
    return Growth(start=start, directions=tuple(directions), build=build, locate=_locate, top=top)


def _candidate(expansion: int, kernel: int) -> Candidate:
    if expansion == 0:
        return "skip"
    return CANDIDATES[CANDIDATES.index(f"{KERNELS[kernel]}_{EXPANSIONS[expansion]}")]


def _locate(arch: InvertedResidualArchitecture) -> Coordinates:
    place: dict[str, int] = {}
    for block, candidate in enumerate(arch.blocks):
        kernel, expansion = (KERNELS[0], "skip") if candidate == "skip" else (candidate[:5], candidate[6:])
        place[f"expansion{block}"] = EXPANSIONS.index(expansion)
        place[f"kernel{block}"] = KERNELS.index(kernel)
    return place

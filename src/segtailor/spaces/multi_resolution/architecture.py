"""What a network of this family is: branches of cells after removal of skips, between a fixed stem and head."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import Literal, TypeAlias, get_args

from segtailor.core.errors import InvalidArchitecture

CellOperator: TypeAlias = Literal["conv", "zoomed_conv", "conv_2x", "zoomed_conv_2x"]
CELL_OPERATORS: tuple[CellOperator, ...] = get_args(CellOperator)  # order of the alpha vector, after "skip"
RATES = (8, 16, 32)  # downsampling rates at which a branch may end, finest first; the stem ends at the first
FIRST_RATE = RATES[0]
MAX_CELLS = 64
MAX_RATIO = 256  # of channels to the downsampling rate


@dataclass(frozen=True, kw_only=True)
class BranchCell:
    """One operator; its output has `ratio` times the downsampling rate channels, at the rate it is written at."""

    operator: CellOperator
    ratio: int
    stride: Literal[1, 2] = 1


Branch: TypeAlias = tuple[BranchCell, ...]


@dataclass(frozen=True, kw_only=True)
class MultiResolutionArchitecture:
    """One or two branches that end at different rates (8, 16 or 32), coarsest first; ratios are channels over rate."""

    branches: tuple[Branch, ...]
    stem_ratio: int = 8
    head_ratio: int = 8

    def __post_init__(self) -> None:
        _check_ratio("stem_ratio", self.stem_ratio)
        _check_ratio("head_ratio", self.head_ratio)
        if not 1 <= len(self.branches) <= 2:
            raise InvalidArchitecture(f"branches: there are {len(self.branches)}; allowed: 1 or 2.")
        for number, branch in enumerate(self.branches):
            _check_branch(f"branches.{number}", branch, head_ratio=self.head_ratio)
        ends = self.ends
        if sorted(set(ends), reverse=True) != list(ends):
            raise InvalidArchitecture(
                f"branches: they end at rates {list(ends)}; allowed: different rates, coarsest first, e.g. [32, 16]."
            )

    @property
    def ends(self) -> tuple[int, ...]:
        """The downsampling rate at which each branch ends."""
        return tuple(end_rate(branch) for branch in self.branches)

    @property
    def shared(self) -> int:
        """How many first cells both branches have in common: these are one module, computed once.

        A shared cell has the same operator, width and stride in both branches, and is the last of neither.
        """
        if len(self.branches) == 1:
            return 0
        pairs = zip(*(branch[:-1] for branch in self.branches), strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def end_rate(branch: Branch) -> int:
    """Return the downsampling rate at which a branch ends."""
    rate = FIRST_RATE
    for cell in branch:
        rate *= cell.stride
    return rate


def _check_branch(field: str, branch: Branch, *, head_ratio: int) -> None:
    if not 1 <= len(branch) <= MAX_CELLS:
        raise InvalidArchitecture(f"{field}: {len(branch)} cells; allowed: 1 to {MAX_CELLS}.")
    for number, cell in enumerate(branch):
        where = f"{field}.{number}"
        if cell.operator not in CELL_OPERATORS:
            raise InvalidArchitecture(
                f"{where}.operator: {cell.operator!r}; allowed: {', '.join(CELL_OPERATORS)}."
            )
        if cell.stride not in (1, 2):
            raise InvalidArchitecture(f"{where}.stride: {cell.stride}; allowed: 1 or 2.")
        _check_ratio(f"{where}.ratio", cell.ratio)
    if end_rate(branch) > 4 * FIRST_RATE:
        raise InvalidArchitecture(
            f"{field}: ends at rate {end_rate(branch)}; allowed: at most 2 cells of stride 2, for a rate of 32."
        )
    if branch[-1].ratio != head_ratio:
        raise InvalidArchitecture(
            f"{field}.{len(branch) - 1}.ratio: {branch[-1].ratio}; allowed: {head_ratio}, "
            "since the last cell of a branch writes the head ratio."
        )


def _check_ratio(field: str, ratio: int) -> None:
    if not 1 <= ratio <= MAX_RATIO:
        raise InvalidArchitecture(f"{field}: {ratio}; allowed: 1 to {MAX_RATIO}.")

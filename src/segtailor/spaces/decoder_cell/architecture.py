"""What a network of this family is: which maps each block reads, one cell design, and the frame around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from segtailor.core.errors import InvalidArchitecture
from segtailor.spaces.decoder_cell.encoders import check_name

Operation: TypeAlias = Literal[
    "conv1x1",
    "conv3x3",
    "sep3x3",
    "sep5x5",
    "gap",
    "conv3x3_rate3",
    "conv3x3_rate12",
    "sep3x3_rate3",
    "sep5x5_rate6",
    "skip",
    "zero",
]
Auxiliary: TypeAlias = Literal["cell", "plain", "none"]
Pair: TypeAlias = tuple[int, int]

OPERATIONS: tuple[Operation, ...] = get_args(Operation)  # in the paper's order: the index is its integer
AUXILIARIES: tuple[Auxiliary, ...] = get_args(Auxiliary)
TAPS = 4  # maps that the encoder gives; block inputs count from them
BLOCKS = 3
BRANCHES = 3
MOST_CHANNELS, MOST_REPEATS = 8192, 16


@dataclass(frozen=True, kw_only=True)
class Branch:
    """Two operations on two earlier entries of the cell's pool; their sum is a third new entry."""

    inputs: Pair
    operations: tuple[Operation, Operation]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A small graph on one map. Pool entries: 0 is the input, 1 the first operation, then three per branch.

    Branch j (from 0) adds entries 3j + 2 and 3j + 3, its operations, and 3j + 4, their sum.
    """

    first: Operation
    branches: tuple[Branch, Branch, Branch]

    def __post_init__(self) -> None:
        _check_operation("cell.first", self.first)
        _check_length("cell.branches", self.branches, BRANCHES)
        for number, branch in enumerate(self.branches):
            place = f"cell.branches[{number}]"
            _check_length(f"{place}.operations", branch.operations, 2)
            for slot, operation in enumerate(branch.operations):
                _check_operation(f"{place}.operations[{slot}]", operation)
            _check_inputs(f"{place}.inputs", branch.inputs, pool=3 * number + 2, reader=f"branch {number}")

    @property
    def collected(self) -> tuple[int, ...]:
        """Entries whose sum is the output: the first operation and the branch sums that no branch reads."""
        read = {index for branch in self.branches for index in branch.inputs}
        return tuple(index for index in range(1, 3 * BRANCHES + 2, 3) if index not in read)


@dataclass(frozen=True, kw_only=True)
class DecoderCellArchitecture:
    """Connections of the three blocks, the cell, and the frame: encoder, decoder channels, separable repeats.

    Block inputs count the pool: 0 to 3 are the encoder's taps from stride 4 to 32, 4 and 5 the blocks before.
    """

    connections: tuple[Pair, Pair, Pair]
    cell: Cell
    encoder: str = "mobilenet_v2"
    channels: int = 64
    repeats: int = 2
    auxiliary: Auxiliary = "cell"

    def __post_init__(self) -> None:
        _check_length("connections", self.connections, BLOCKS)
        for block, inputs in enumerate(self.connections):
            _check_inputs(f"connections[{block}]", inputs, pool=TAPS + block, reader=f"block {block}")
        check_name(self.encoder)
        for field, value, most in (
            ("channels", self.channels, MOST_CHANNELS),
            ("repeats", self.repeats, MOST_REPEATS),
        ):
            if not 1 <= value <= most:
                raise InvalidArchitecture(f"{field}: {value}; allowed: 1 to {most}.")
        if self.auxiliary not in AUXILIARIES:
            raise InvalidArchitecture(f"auxiliary: {self.auxiliary!r}; allowed: {', '.join(AUXILIARIES)}.")

    @property
    def collected(self) -> tuple[int, ...]:
        """Blocks (from 0) that feed the head: those that no later block reads."""
        read = {index for inputs in self.connections for index in inputs}
        return tuple(block for block in range(BLOCKS) if TAPS + block not in read)


def _check_length(place: str, values: Sequence[object], length: int) -> None:
    if len(values) != length:
        raise InvalidArchitecture(f"{place}: {len(values)} entries; exactly {length} are allowed.")


def _check_operation(place: str, operation: str) -> None:
    if operation not in OPERATIONS:
        raise InvalidArchitecture(f"{place}: {operation!r}; allowed: {', '.join(OPERATIONS)}.")


def _check_inputs(place: str, inputs: Pair, *, pool: int, reader: str) -> None:
    _check_length(place, inputs, 2)
    for slot, index in enumerate(inputs):
        if not 0 <= index < pool:
            why = "which does not exist yet" if index >= pool else "which no pool has"
            raise InvalidArchitecture(
                f"{place}[{slot}]: reads entry {index}, {why}; {reader} is allowed 0 to {pool - 1}."
            )

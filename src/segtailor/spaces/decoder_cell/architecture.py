"""What a network of this family is: which maps each block reads, one cell design, and the frame around them.

Also the paper's integer forms of it: nested [connections, cell], and 20 flat integers. The paper writes
[connections, cell], the authors' program [cell, connections]. A cell starts with an integer and connections with a
pair, so both are read; either can be written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

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
Order: TypeAlias = Literal["connections_first", "cell_first"]  # of the nested form
Inputs: TypeAlias = tuple[int, int]

OPERATIONS: tuple[Operation, ...] = get_args(Operation)  # in the paper's order: the index is its integer
AUXILIARIES: tuple[Auxiliary, ...] = get_args(Auxiliary)
TAPS = 4  # maps that the encoder gives; block inputs count from them
BLOCKS = 3
BRANCHES = 3
MAX_CHANNELS, MAX_REPEATS = 8192, 16
FLAT_LENGTH = 20  # integers: a leading 0, 13 of the cell, 6 of the connections


@dataclass(frozen=True, kw_only=True)
class Branch:
    """Two operations on two earlier entries of the cell's pool; their sum is a third new entry."""

    inputs: Inputs
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
            where = f"cell.branches[{number}]"
            _check_length(f"{where}.operations", branch.operations, 2)
            for slot, operation in enumerate(branch.operations):
                _check_operation(f"{where}.operations[{slot}]", operation)
            _check_inputs(f"{where}.inputs", branch.inputs, pool=3 * number + 2, reader=f"branch {number}")

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

    connections: tuple[Inputs, Inputs, Inputs]
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
            ("channels", self.channels, MAX_CHANNELS),
            ("repeats", self.repeats, MAX_REPEATS),
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


def decode(sequence: Sequence[Any], **frame: Any) -> DecoderCellArchitecture:
    """Read a nested sequence in either order; `frame` sets encoder, channels, repeats or auxiliary."""
    if not isinstance(sequence, Sequence) or len(sequence) != 2:
        raise InvalidArchitecture("sequence: expected [connections, cell] or [cell, connections].")
    connections, cell = sequence
    if isinstance(connections, Sequence) and connections and isinstance(connections[0], int):
        connections, cell = cell, connections
    rows = [_integers("connections", row, 2) for row in _parts("connections", connections, BLOCKS)]
    head, *tail = _parts("cell", cell, 1 + BRANCHES)
    branches = [_integers(f"cell[{number}]", part, 4) for number, part in enumerate(tail, start=1)]
    return DecoderCellArchitecture(
        connections=tuple((first, second) for first, second in rows),  # type: ignore[arg-type]
        cell=Cell(
            first=_operation("cell[0]", head),
            branches=tuple(_branch(number, row) for number, row in enumerate(branches, start=1)),  # type: ignore[arg-type]
        ),
        **frame,
    )


def encode(arch: DecoderCellArchitecture, *, order: Order = "connections_first") -> list[Any]:
    """Write the nested sequence."""
    connections = [list(inputs) for inputs in arch.connections]
    branches = [[*branch.inputs, *map(OPERATIONS.index, branch.operations)] for branch in arch.cell.branches]
    cell = [OPERATIONS.index(arch.cell.first), *branches]
    return [connections, cell] if order == "connections_first" else [cell, connections]


def unflatten(actions: Sequence[int], **frame: Any) -> DecoderCellArchitecture:
    """Read the 20 integers that the authors' program stores: 0, the cell, then the connections."""
    values = _integers("actions", actions, FLAT_LENGTH)
    if values[0] != 0:
        raise InvalidArchitecture(f"actions[0]: {values[0]}; allowed: 0, which carries no meaning.")
    cell = [values[1], *(values[start : start + 4] for start in (2, 6, 10))]
    connections = [values[start : start + 2] for start in (14, 16, 18)]
    return decode([connections, cell], **frame)


def flatten(arch: DecoderCellArchitecture) -> list[int]:
    """Write the 20 integers."""
    connections, (first, *branches) = encode(arch)
    return [0, first, *(value for row in [*branches, *connections] for value in row)]


def _check_length(where: str, values: Sequence[object], length: int) -> None:
    if len(values) != length:
        raise InvalidArchitecture(f"{where}: {len(values)} entries; exactly {length} are allowed.")


def _check_operation(where: str, operation: str) -> None:
    if operation not in OPERATIONS:
        raise InvalidArchitecture(f"{where}: {operation!r}; allowed: {', '.join(OPERATIONS)}.")


def _check_inputs(where: str, inputs: Inputs, *, pool: int, reader: str) -> None:
    _check_length(where, inputs, 2)
    for slot, index in enumerate(inputs):
        if not 0 <= index < pool:
            why = "which does not exist yet" if index >= pool else "which no pool has"
            raise InvalidArchitecture(
                f"{where}[{slot}]: reads entry {index}, {why}; {reader} is allowed 0 to {pool - 1}."
            )


def _parts(where: str, value: Any, length: int) -> Sequence[Any]:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != length:
        raise InvalidArchitecture(f"{where}: {value!r}; expected a list of {length} entries.")
    return value


def _integers(where: str, value: Any, length: int) -> list[int]:
    parts = _parts(where, value, length)
    if not all(isinstance(part, int) for part in parts):
        raise InvalidArchitecture(f"{where}: {value!r}; expected {length} integers.")
    return list(parts)


def _operation(where: str, value: Any) -> Operation:
    if not isinstance(value, int) or not 0 <= value < len(OPERATIONS):
        raise InvalidArchitecture(f"{where}: operation {value!r}; allowed: 0 to {len(OPERATIONS) - 1}.")
    return OPERATIONS[value]


def _branch(number: int, row: list[int]) -> Branch:
    first, second = (_operation(f"cell[{number}][{slot}]", row[slot]) for slot in (2, 3))
    return Branch(inputs=(row[0], row[1]), operations=(first, second))

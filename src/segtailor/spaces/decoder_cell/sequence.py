"""The paper's integer forms of an architecture: nested [connections, cell], and 20 flat integers.

The paper writes [connections, cell], the authors' program [cell, connections]. A cell starts with an integer and
connections with a pair, so both are read; either can be written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from segtailor.core.errors import InvalidArchitecture
from segtailor.spaces.decoder_cell.architecture import (
    BLOCKS,
    BRANCHES,
    OPERATIONS,
    Branch,
    Cell,
    DecoderCellArchitecture,
    Operation,
)

Order: TypeAlias = Literal["connections_first", "cell_first"]
FLAT = 20  # a leading 0, 13 integers of the cell, 6 of the connections


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
    values = _integers("actions", actions, FLAT)
    if values[0] != 0:
        raise InvalidArchitecture(f"actions[0]: {values[0]}; allowed: 0, which carries no meaning.")
    cell = [values[1], *(values[start : start + 4] for start in (2, 6, 10))]
    connections = [values[start : start + 2] for start in (14, 16, 18)]
    return decode([connections, cell], **frame)


def flatten(arch: DecoderCellArchitecture) -> list[int]:
    """Write the 20 integers."""
    connections, (first, *branches) = encode(arch)
    return [0, first, *(value for row in [*branches, *connections] for value in row)]


def _parts(place: str, value: Any, length: int) -> Sequence[Any]:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != length:
        raise InvalidArchitecture(f"{place}: {value!r}; expected a list of {length} entries.")
    return value


def _integers(place: str, value: Any, length: int) -> list[int]:
    parts = _parts(place, value, length)
    if not all(isinstance(part, int) for part in parts):
        raise InvalidArchitecture(f"{place}: {value!r}; expected {length} integers.")
    return list(parts)


def _operation(place: str, value: Any) -> Operation:
    if not isinstance(value, int) or not 0 <= value < len(OPERATIONS):
        raise InvalidArchitecture(f"{place}: operation {value!r}; allowed: 0 to {len(OPERATIONS) - 1}.")
    return OPERATIONS[value]


def _branch(number: int, row: list[int]) -> Branch:
    first, second = (_operation(f"cell[{number}][{slot}]", row[slot]) for slot in (2, 3))
    return Branch(inputs=(row[0], row[1]), operations=(first, second))

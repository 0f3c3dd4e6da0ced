"""Flag types that several verbs share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

from cyclopts import Parameter, Token

from segtailor.core.errors import UserError


def parse_size(text: str) -> tuple[int, int]:
    """Read HEIGHTxWIDTH."""
    match = re.fullmatch(r"(\d{1,5})[xX](\d{1,5})", text.strip())
    if not match or not all(int(side) for side in match.groups()):
        raise UserError(f"size '{text}' is not HEIGHTxWIDTH in pixels; write for example 360x480.")
    return int(match[1]), int(match[2])


def _size(kind: Any, tokens: Sequence[Token]) -> tuple[int, int]:  # noqa: ARG001 - the form that cyclopts calls
    return parse_size(tokens[0].value)


Size: TypeAlias = Annotated[tuple[int, int], Parameter(converter=_size, n_tokens=1, negative=())]
Json: TypeAlias = Annotated[
    bool, Parameter(name="--json", negative=(), help="Print one JSON document on stdout.")
]
Force: TypeAlias = Annotated[
    bool, Parameter(name="--force", negative=(), help="Replace files that segtailor did not write, too.")
]
DryRun: TypeAlias = Annotated[
    bool, Parameter(name="--dry-run", negative=(), help="Say what would be done and where, and stop.")
]

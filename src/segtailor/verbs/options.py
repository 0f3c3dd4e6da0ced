"""Flag types that several verbs share."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

from cyclopts import Parameter, Token

from segtailor.core.errors import UserError
from segtailor.core.ranges import MAX_COUNT, MAX_SEED, check_number, check_whole, parse_size


def _size(kind: Any, tokens: Sequence[Token]) -> tuple[int, int]:  # noqa: ARG001 - cyclopts passes both
    return parse_size(tokens[0].value)


def _whole(least: int, most: int) -> Parameter:
    """Return a parameter that reads a whole number in a range; its errors name the flag."""

    def read(kind: Any, tokens: Sequence[Token]) -> int:  # noqa: ARG001 - cyclopts passes both
        text, flag = tokens[0].value, tokens[0].keyword or "number"
        if not re.fullmatch(r"[+-]?\d{1,40}", text.strip()):
            raise UserError(f"{flag} {text[:60]}: this is no whole number; give one from {least} to {most}.")
        check_whole(flag, int(text), least=least, most=most)
        return int(text)

    return Parameter(converter=read, n_tokens=1, negative=(), allow_leading_hyphen=True)


def _number(above: float, most: float) -> Parameter:
    """Return a parameter that reads a finite number in a range; its errors name the flag."""

    def read(kind: Any, tokens: Sequence[Token]) -> float:  # noqa: ARG001 - cyclopts passes both
        text, flag = tokens[0].value, tokens[0].keyword or "number"
        try:
            value = float(text)
        except ValueError:
            raise UserError(f"{flag} {text[:60]}: this is no number.") from None
        check_number(flag, value, above=above, most=most)
        return value

    return Parameter(converter=read, n_tokens=1, negative=(), allow_leading_hyphen=True)


Seed: TypeAlias = Annotated[int, _whole(0, MAX_SEED)]
Count: TypeAlias = Annotated[int, _whole(1, MAX_COUNT)]
CountOrZero: TypeAlias = Annotated[int, _whole(0, MAX_COUNT)]
Networks: TypeAlias = Annotated[int, _whole(0, 10_000)]  # to measure; zero is allowed
Classes: TypeAlias = Annotated[int, _whole(1, 10_000)]
Port: TypeAlias = Annotated[int, _whole(0, 65535)]
Positive: TypeAlias = Annotated[float, _number(0.0, math.inf)]
Seconds: TypeAlias = Annotated[float, _number(0.0, 1e6)]
Words: TypeAlias = Annotated[
    str, Parameter(allow_leading_hyphen=True)
]  # so that `--budget -5ms` is explained
Size: TypeAlias = Annotated[
    tuple[int, int], Parameter(converter=_size, n_tokens=1, negative=(), metavar="HEIGHTxWIDTH")
]
Json: TypeAlias = Annotated[
    bool, Parameter(name="--json", negative=(), help="Print one JSON document on stdout.")
]
Force: TypeAlias = Annotated[
    bool, Parameter(name="--force", negative=(), help="Also replace files that segtailor did not write.")
]
DryRun: TypeAlias = Annotated[
    bool, Parameter(name="--dry-run", negative=(), help="Say what would be done and where, and stop.")
]
Set: TypeAlias = Annotated[  # FIELD=VALUE, several of them
    tuple[str, ...], Parameter(name="--set", negative=(), consume_multiple=True)
]

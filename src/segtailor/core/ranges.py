"""Ranges of the numbers that users give; what lies outside is refused by its name."""

from __future__ import annotations

import math

from segtailor.core.errors import UserError

SEEDS = 2**63 - 1  # the largest seed that every generator takes
MANY = 10**9  # more steps, images or trials than anyone can wait for


def check_whole(
    name: str, value: int, *, least: int, most: int = MANY, error: type[UserError] = UserError
) -> None:
    """Refuse a whole number outside of a range."""
    if not least <= value <= most:
        side = "too small" if value < least else "too large"
        raise error(f"{name}: {shown(value)} is {side}; give a whole number from {least} to {most}.")


def check_seed(value: int, *, name: str = "seed", error: type[UserError] = UserError) -> None:
    """Refuse a seed that generators do not take."""
    check_whole(name, value, least=0, most=SEEDS, error=error)


def check_number(name: str, value: float, *, above: float, most: float = math.inf) -> None:
    """Refuse a number that is not finite, not above a bound, or beyond the other one."""
    if not (math.isfinite(value) and above < value <= most):
        upto = f" and at most {most:g}" if math.isfinite(most) else ""
        raise UserError(f"{name}: {value:g} is out of range; give a number above {above:g}{upto}.")


def shown(value: int) -> str:
    """Write a number for a message; of a very long one the length."""
    return str(value) if abs(value) < 10**40 else f"a number of {value.bit_length()} bits"

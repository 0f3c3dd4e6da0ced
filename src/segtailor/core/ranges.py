"""Checks of numbers that users give; an error names the setting and the allowed range."""

from __future__ import annotations

import math

from segtailor.core.errors import UserError

MAX_SEED = 2**63 - 1  # accepted by every random generator
MAX_COUNT = 10**9  # of steps, images or trials: more cannot be waited for


def check_whole(
    name: str, value: int, *, least: int, most: int = MAX_COUNT, error: type[UserError] = UserError
) -> None:
    """Refuse a whole number outside a range."""
    if not least <= value <= most:
        side = "too small" if value < least else "too large"
        raise error(f"{name}: {format_integer(value)} is {side}; give a whole number from {least} to {most}.")


def check_seed(value: int, *, name: str = "seed", error: type[UserError] = UserError) -> None:
    """Refuse a seed that some random generator does not accept."""
    check_whole(name, value, least=0, most=MAX_SEED, error=error)


def check_number(name: str, value: float, *, above: float, most: float = math.inf) -> None:
    """Refuse a number that is not finite, not above `above`, or larger than `most`."""
    if not (math.isfinite(value) and above < value <= most):
        limit = f" and at most {most:g}" if math.isfinite(most) else ""
        raise UserError(f"{name}: {value:g} is out of range; give a number above {above:g}{limit}.")


def format_integer(value: int) -> str:
    """Write a number for a message; of a very long one only the length."""
    return str(value) if abs(value) < 10**40 else f"a number of {value.bit_length()} bits"

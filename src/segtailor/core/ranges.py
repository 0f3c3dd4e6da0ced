"""Numbers and sizes that users give: read, checked against a range, and refused by name where they do not fit."""

from __future__ import annotations

import math
import re

from segtailor.core.errors import UserError

SEEDS = 2**63 - 1  # the largest seed that every generator takes
MAX_SIDE_PIXELS = 2**15  # of a picture
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


def parse_size(
    text: str, *, name: str = "size", most: int = MAX_SIDE_PIXELS, error: type[UserError] = UserError
) -> tuple[int, int]:
    """Read HEIGHTxWIDTH in pixels, e.g. `360x480` (`X` and `×` do as well); sides are 1 to `most`."""
    match = re.fullmatch(r"(\d{1,6})[xX×](\d{1,6})", text.strip())
    height, width = (int(match[1]), int(match[2])) if match else (0, 0)
    if not height or not width:
        raise error(f"{name} '{text[:60]}' is not HEIGHTxWIDTH in pixels; write for example 360x480.")
    if max(height, width) > most:
        raise error(f"{name} '{text}' is larger than any picture; give sides of 1 to {most} pixels.")
    return height, width


def shown(value: int) -> str:
    """Write a number for a message; of a very long one the length."""
    return str(value) if abs(value) < 10**40 else f"a number of {value.bit_length()} bits"

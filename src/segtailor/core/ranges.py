"""Numbers and sizes that users give: read and checked; an error names the setting and the allowed range."""

from __future__ import annotations

import math
import re

from segtailor.core.errors import UserError

MAX_SEED = 2**63 - 1  # accepted by every random generator
MAX_SIDE_PIXELS = 2**15  # of a picture
MAX_COUNT = 10**9  # of steps, images or trials: more cannot be waited for


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

"""How reports write numbers: with few digits, each quantity in one way."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

MAX_NUMBER = 1e24  # a larger one is a mistake; axes cannot hold it
PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
UNKNOWN = "–"


def percent(share: float | None, digits: int = 1) -> str:
    """Write a fraction in percent."""
    return _known(share, lambda value: f"{100 * value:.{digits}f} %")


def milliseconds(value: float | None) -> str:
    """Write a time with three significant digits."""
    return _known(value, lambda ms: f"{significant(ms)} ms")


def amount(value: float | None, unit: str = "") -> str:
    """Write a cost or count with a prefix: `12.5 ms`, `3.37 M`, `10.4 G MACs`."""

    def written(number: float) -> str:
        scale, prefix = _prefix(number)
        return " ".join(part for part in (significant(number / scale), prefix, unit) if part)

    return _known(value, written)


def short(value: float) -> str:
    """Write a number for the tick of an axis, with a prefix: `12.5M`."""
    scale, prefix = _prefix(value)
    return f"{value / scale:.4g}{prefix}"


def duration(seconds: float | None) -> str:
    """Write a duration: `3.2 s`, `2 min 14 s`, `1 h 02 min`."""

    def written(number: float) -> str:
        if number < 60:
            return f"{number:.1f} s"
        minutes, rest = divmod(round(number), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"

    return _known(seconds, written)


def size(count: int | None) -> str:
    """Write a number of bytes."""
    return _known(
        count, lambda value: f"{value / 2**20:.2f} MiB" if value >= 2**20 else f"{value / 1024:.0f} KiB"
    )


def significant(value: float, digits: int = 3) -> str:
    """Write a number with this many significant digits, never in exponential form."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else UNKNOWN
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(places, 9)}f}"


def share_of(value: float | None, values: Sequence[float | None]) -> float:
    """Return a value as a fraction of the largest one, for the length of a bar."""
    most = max((other for other in values if other is not None), default=0.0)
    return 0.0 if value is None or most <= 0 else max(0.0, value / most)


def _prefix(value: float) -> tuple[float, str]:
    return next(((scale, sign) for scale, sign in PREFIXES if abs(value) >= scale), (1.0, ""))


def _known(value: float | None, write: Callable[[Any], str]) -> str:
    return UNKNOWN if value is None or not math.isfinite(value) else write(value)

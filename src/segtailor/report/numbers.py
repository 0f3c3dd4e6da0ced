"""How reports write numbers: few digits, one way each."""

from __future__ import annotations

import math
from collections.abc import Sequence

from segtailor.report.pareto import PREFIXES

NOTHING = "–"


def percent(share: float | None, digits: int = 1) -> str:
    """Write a fraction in percent."""
    return _known(share, lambda value: f"{100 * value:.{digits}f} %")


def milliseconds(value: float | None) -> str:
    """Write a time with three significant digits."""
    return _known(value, lambda ms: f"{significant(ms)} ms")


def amount(value: float | None, unit: str = "") -> str:
    """Write a cost or count with a prefix: `12.5 ms`, `3.37 M`, `10.4 G MACs`."""

    def written(number: float) -> str:
        scale, prefix = next(((size, sign) for size, sign in PREFIXES if abs(number) >= size), (1.0, ""))
        return " ".join(part for part in (significant(number / scale), prefix, unit) if part)

    return _known(value, written)


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
        return "0" if value == 0 else NOTHING
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(places, 9)}f}"


def share_of(value: float | None, values: Sequence[float | None]) -> float:
    """Return a value as a fraction of the largest one, for the length of a bar."""
    most = max((other for other in values if other is not None), default=0.0)
    return 0.0 if value is None or most <= 0 else max(0.0, value / most)


def _known(value: float | None, write: object) -> str:
    if value is None or not math.isfinite(value):
        return NOTHING
    return str(write(value))  # type: ignore[operator]

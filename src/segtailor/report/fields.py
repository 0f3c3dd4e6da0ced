"""Read plain JSON from a source that is not trusted: a field of the wrong type counts as absent."""

from __future__ import annotations

import json
from typing import Any

from segtailor.report.numbers import MAX_NUMBER

MAX_SIDE_PIXELS = 65_536
MAX_SHOWN_LETTERS = 200  # of a setting


def number(data: Any, *path: str) -> float | None:
    """Return the finite number at a path of keys."""
    value = at(data, *path)
    fits = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if fits and abs(value) <= MAX_NUMBER else None


def whole(data: Any, *path: str) -> int | None:
    """Return the integer at a path of keys."""
    value = at(data, *path)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def text(data: Any, *path: str) -> str:
    """Return the text at a path of keys, or an empty one."""
    value = at(data, *path)
    return value if isinstance(value, str) else ""


def table(data: Any, *path: str) -> dict[str, Any]:
    """Return the object at a path of keys, or an empty one."""
    value = at(data, *path)
    return value if isinstance(value, dict) else {}


def rows(data: Any, *path: str) -> list[dict[str, Any]]:
    """Return the objects of the list at a path of keys."""
    value = at(data, *path)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def size(data: Any, *path: str) -> tuple[int, int] | None:
    """Return the height and width at a path of keys."""
    value = at(data, *path)
    fits = (
        isinstance(value, list)
        and len(value) == 2
        and all(type(side) is int and 0 < side <= MAX_SIDE_PIXELS for side in value)
    )
    return (value[0], value[1]) if fits else None


def at(data: Any, *path: str) -> Any:
    """Return the value at a path of keys, or None."""
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def flat(data: Any, name: str = "") -> list[tuple[str, str]]:
    """Return the leaves of nested objects by dotted name, values as short text."""
    if isinstance(data, dict) and data:
        return [
            leaf for key, value in data.items() for leaf in flat(value, f"{name}.{key}" if name else str(key))
        ]
    written = data if isinstance(data, str) else "none" if data is None else json.dumps(data)
    shown = written if len(written) <= MAX_SHOWN_LETTERS else written[: MAX_SHOWN_LETTERS - 1] + "…"
    return [(name, shown)]

"""Change single fields of a recipe from the command line: `fit.lr=0.02`. Types are checked when it is parsed again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from segtailor.core.errors import UserError


def overridden(document: Mapping[str, Any], changes: Iterable[str]) -> dict[str, Any]:
    """Return a copy of plain JSON data with dotted fields set; values are JSON, or else text."""
    result: dict[str, Any] = json.loads(json.dumps(document))
    begun: list[dict[str, Any]] = []  # was left out: which fields it has, only its parser knows
    for change in changes:
        path, sign, text = change.partition("=")
        keys = path.split(".")
        if not sign or not all(keys):
            raise UserError(f"'--set {change}' is not FIELD=VALUE; write for example --set fit.lr=0.02.")
        place = result
        for key in keys[:-1]:
            if key not in place:
                raise UserError(f"'--set {change}': there is no '{key}'; fields here are {', '.join(place)}.")
            if place[key] is None:
                place[key] = {}
                begun.append(place[key])
            place = place[key]
            if not isinstance(place, dict):
                raise UserError(f"'--set {change}': '{key}' is a single value and has no fields.")
        if place and keys[-1] not in place and not any(place is other for other in begun):
            raise UserError(
                f"'--set {change}': there is no '{keys[-1]}'; fields here are {', '.join(place)}."
            )
        place[keys[-1]] = _value(text)
    return result


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text

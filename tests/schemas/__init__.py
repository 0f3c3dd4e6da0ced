"""Schemas of what the command line prints for machines."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

FILE = Path(__file__).with_name("output.json")


@cache
def schema() -> dict[str, Any]:
    return dict(json.loads(FILE.read_text(encoding="utf-8")))


def conforming(verb: str, printed: str) -> Any:
    """Return the one JSON document that a verb printed; raise where it is not as its schema says."""
    document = json.loads(printed)
    Draft202012Validator({**schema(), "$ref": f"#/$defs/{verb}"}).validate(document)
    return document

"""Published architectures by name, shipped as data beside their family."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from segtailor.core.codec import read_json
from segtailor.core.errors import InvalidArchitecture, unknown
from segtailor.core.space import SPACES, Architecture, parse_architecture


def architectures() -> tuple[str, ...]:
    """Return the names of all published architectures, family by family."""
    return tuple(_index())


def published(name: str) -> Architecture:
    """Return a published architecture by name."""
    return parse_architecture(published_record(name), what=name)


@cache
def published_record(name: str) -> dict[str, Any]:
    """Return the whole record of a published architecture: the document, and its published results under `origin`."""
    if name not in _index():
        raise unknown("published architecture", name, _index())
    record: dict[str, Any] = read_json(_index()[name], what=f"record of {name}", error=InvalidArchitecture)
    return record


@cache
def _index() -> dict[str, Any]:
    files: dict[str, Any] = {}
    for family in SPACES.names():
        folder = resources.files("segtailor.spaces") / family / "published"
        if folder.is_dir():
            found = sorted(
                (file for file in folder.iterdir() if file.name.endswith(".json")),
                key=lambda f: _order(f.name),
            )
            files.update({file.name.removesuffix(".json"): file for file in found})
    return files


def _order(name: str) -> tuple[str, int]:
    stem = name.removesuffix(".json")
    digits = stem[len(stem.rstrip("0123456789")) :]
    return stem.rstrip("0123456789"), int(digits or -1)

"""Published networks by name, shipped as data beside their family."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from segtailor.core.codec import read_json
from segtailor.core.errors import InvalidArchitecture, unknown
from segtailor.core.registry import FIXED, SPACES
from segtailor.core.space import Architecture, families, parse_architecture

ENCODED = "decoder_cell"  # the family whose networks name their encoder
LITE0, ON_LITE0 = "efficientnet_lite0", "-lite0"


def architectures() -> tuple[str, ...]:
    """Return the names of all published architectures of search spaces, family by family."""
    return tuple(name for family in SPACES.names() for name in _files(family))


def baselines() -> tuple[str, ...]:
    """Return the names of the published networks that were made by hand."""
    return tuple(name for family in FIXED.names() for name in _files(family))


def on_lite0() -> tuple[str, ...]:
    """Return the names of the published decoders on EfficientNet-Lite0, whose ImageNet weights are at hand.

    Their authors put them on another encoder.
    """
    return tuple(name + ON_LITE0 for name in _files(ENCODED))


def is_published(name: object) -> bool:
    """Tell whether something is the name of a published architecture or baseline."""
    return isinstance(name, str) and (name in _index() or name in on_lite0())


def published(name: str) -> Architecture:
    """Return a published architecture or baseline by name."""
    return parse_architecture(published_record(name), what=name)


@cache
def published_record(name: str) -> dict[str, Any]:
    """Return the whole record of a published network: the document, and its published results under `origin`."""
    if name in on_lite0():
        record = published_record(name.removesuffix(ON_LITE0))
        changed = {**record["architecture"], "encoder": LITE0}
        return {**record, "architecture": changed, "origin": {**record["origin"], "results": {}}}
    if name not in _index():
        raise unknown("published architecture or baseline", name, _index())
    known: dict[str, Any] = read_json(_index()[name], what=f"record of {name}", error=InvalidArchitecture)
    return known


@cache
def _index() -> dict[str, Any]:
    return {name: file for family in families() for name, file in _files(family).items()}


@cache
def _files(family: str) -> dict[str, Any]:
    """Return the records of a family by name; families from outside this package have none."""
    folder = resources.files("segtailor.spaces") / family / "published"
    if not folder.is_dir():
        return {}
    files = [file for file in folder.iterdir() if file.name.endswith(".json")]
    return {
        file.name.removesuffix(".json"): file for file in sorted(files, key=lambda file: _order(file.name))
    }


def _order(name: str) -> tuple[str, int]:
    stem = name.removesuffix(".json")
    digits = stem[len(stem.rstrip("0123456789")) :]
    return stem.rstrip("0123456789"), int(digits or -1)

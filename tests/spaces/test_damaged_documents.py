"""Architecture documents from outside: any damage is either harmless or an `InvalidArchitecture`, and soon told."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest

import segtailor
from segtailor.core.errors import InvalidArchitecture
from segtailor.core.space import architecture_document, parse_architecture
from segtailor.spaces import published_record

NAMES = ("auxcells-arch0", "autortnet-a", "squeezenas-mac-small", "fasterseg-student", "lpsnet-m")
VALUES: list[Any] = [
    None, True, 0, -1, 2, 3, 65, 257, 8193, 10**9, 10**30, 1.5, float("nan"), float("inf"), 1e308, "", "skip", "zero",
    "1/0", "1e-999999999999", "9" * 19, "½", "\ud800", "x" * 200_000, [], {}, [[[[]]]], [1] * 1000, {"depth": 1},
]  # fmt: skip


def damage(document: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Replace, drop, double, move or add something somewhere in a copy."""
    document = copy.deepcopy(document)
    holder, key = rng.choice([place for place in _places(document) if place[1] != "origin"])
    kind = rng.randrange(6)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.insert(key, holder[key])
    elif kind == 2 and isinstance(holder, dict):
        holder[rng.choice(["depth", "blocks", "cell", "surprise"])] = rng.choice(VALUES)
    elif kind == 3 and isinstance(holder[key], int):
        holder[key] += rng.choice([-10, -1, 1, 10])
    elif kind == 4:
        holder[key] = copy.deepcopy(published_record(rng.choice(NAMES))["architecture"])
    else:
        holder[key] = copy.deepcopy(rng.choice(VALUES))
    return document


def _places(value: Any) -> list[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    return [(value, key) for key in keys] + [place for key in keys for place in _places(value[key])]


@pytest.mark.parametrize("name", NAMES)
def test_damage_is_explained_or_harmless(name: str) -> None:
    rng = random.Random(name)
    refused = []
    for _ in range(300):
        document = damage(published_record(name), rng)
        try:
            arch = parse_architecture(document)
            segtailor.count(arch, image=(64, 64))
        except InvalidArchitecture as problem:
            refused.append(str(problem))
        else:
            assert parse_architecture(json.loads(json.dumps(architecture_document(arch)))) == arch
    assert 100 < len(refused) < 300
    assert max(map(len, refused)) < 1000

"""What to expect of a network of the family before it is trained: earlier trainings told which traits pay.

What each trait is worth was fitted to trainings of random networks on several datasets, all from ImageNet weights and
each for the same time: `benchmarks/experience.py` makes `expected.json`, and docs/results.md#experience says how far it
holds on data that it was not fitted to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from segtailor.core.codec import from_json, read_json
from segtailor.spaces.elastic.architecture import (
    DETAIL_STRIDES,
    EXPANSION,
    OPTIONAL_STAGE,
    STAGES,
    ElasticArchitecture,
)

FILE = Path(__file__).with_name("expected.json")
USUAL_DECODER, USUAL_DEEPEST = 64, 16  # where the logarithms below are 0


def expected(arch: ElasticArchitecture) -> float:
    """Return by how much of mIoU (0 to 1) a network should do better than a usual one of the family."""
    return sum(worth * traits(arch)[name] for name, worth in _worths().items())


def traits(arch: ElasticArchitecture) -> dict[str, float]:
    """Return what is worth knowing of a network; nothing depends on images or devices."""
    scale, deepest = math.log2(arch.ratio), math.log2(arch.deepest / USUAL_DEEPEST)
    blocks = [stage.blocks for stage in STAGES]
    used = [expansion for depth, expansion in zip(arch.depths, arch.expansions, strict=True) if depth]
    return {
        "one": 1.0,
        "scale": scale,
        "scale squared": scale**2,
        "whole blocks": sum(used) / (EXPANSION * len(used)),
        "depth": sum(arch.depths[:OPTIONAL_STAGE]) / sum(blocks[:OPTIONAL_STAGE]),
        "last stage": arch.depths[OPTIONAL_STAGE] / blocks[OPTIONAL_STAGE],
        "fine detail": float(arch.detail == min(DETAIL_STRIDES)),
        "decoder": math.log2(arch.decoder / USUAL_DECODER),
        "deepest": deepest,
        "deepest squared": deepest**2,
    }


@cache
def _worths() -> Mapping[str, float]:
    """Return what each trait is worth."""
    return from_json(Mapping[str, float], read_json(FILE, what="table of traits"), what="table of traits")  # type: ignore[type-abstract]

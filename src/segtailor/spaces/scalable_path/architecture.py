"""What a network of this family is: depth and width per stage, one ratio per path, block and interaction."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from segtailor.core.codec import short
from segtailor.core.errors import InvalidArchitecture

STAGES = 5
MAX_BLOCKS, MAX_CHANNELS = 256, 8192
Interaction: TypeAlias = Literal[
    "none", "direct_a", "direct_b", "attention_a", "attention_b", "bilateral_a", "bilateral_b"
]
Block: TypeAlias = Literal[
    "conv", "residual", "bottleneck", "separable", "inverted_residual", "ghost", "shuffle"
]
BLOCKS: tuple[Block, ...] = get_args(Block)
INTERACTIONS: tuple[Interaction, ...] = get_args(Interaction)


RATIO = r"^[0-9]{1,9}(/0*[1-9][0-9]{0,8})?$"  # a fraction alone: Python would also read, and compute, "1e-999999999"


def _ratio(value: object) -> Fraction:
    known = isinstance(value, str | int | Fraction) and not isinstance(value, bool)
    if not known or not re.fullmatch(RATIO, str(value)):
        raise ValueError(f"a ratio is written like '3/4' or 1, not {short(value)}")
    return Fraction(str(value))


Ratio: TypeAlias = Annotated[
    Fraction,
    PlainValidator(_ratio),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": ["string", "integer"], "pattern": RATIO, "minimum": 0, "examples": ["3/4", 1]}),
]
Five: TypeAlias = tuple[int, int, int, int, int]


@dataclass(frozen=True, kw_only=True)
class ScalablePathArchitecture:
    """Depth B and width C of the five stages, and the ratio R of each path, largest first."""

    depth: Five
    width: Five
    resolution: tuple[Ratio, ...]
    block: Block = "conv"
    interaction: Interaction = "bilateral_b"

    def __post_init__(self) -> None:
        object.__setattr__(self, "resolution", _canonical(self.resolution))
        for field, values, most in (("depth", self.depth, MAX_BLOCKS), ("width", self.width, MAX_CHANNELS)):
            if not _integers(values, most):
                raise InvalidArchitecture(
                    f"{field}: {short(values)}; allowed: {STAGES} integers from 1 to {most}."
                )
        for field, value, known in (
            ("block", self.block, BLOCKS),
            ("interaction", self.interaction, INTERACTIONS),
        ):
            if value not in known:
                raise InvalidArchitecture(f"{field}: {short(value)}; allowed: {', '.join(known)}.")


def _integers(values: Sequence[object], most: int) -> bool:
    return (
        isinstance(values, Sequence)
        and len(values) == STAGES
        and all(isinstance(value, int) and 1 <= value <= most for value in values)
    )


def _canonical(resolution: Iterable[Fraction]) -> tuple[Fraction, ...]:
    """Drop absent paths, which are written 0, and sort: order is irrelevant (LPS-Net section 3.3)."""
    try:
        ratios = sorted((Fraction(ratio) for ratio in resolution), reverse=True)
    except (TypeError, ValueError, ArithmeticError):
        ratios = []
    kept = tuple(ratio for ratio in ratios if ratio != 0)
    if not kept or not 0 < kept[-1] <= kept[0] <= 4 or len(kept) > 8:
        written = [str(ratio) for ratio in kept] or resolution
        raise InvalidArchitecture(
            f"resolution: {short(written)}; allowed: 1 to 8 ratios above 0 and up to 4."
        )
    return kept

"""What a network of this family is: depth and width per stage, one ratio per path, block and interaction."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from segtailor.core.codec import short
from segtailor.core.errors import InvalidArchitecture

STAGES = 5
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
        # Zero means an absent path; order is irrelevant (LPS-Net section 3.3), so the canonical form drops and sorts.
        ratios = tuple(sorted((Fraction(ratio) for ratio in self.resolution if ratio != 0), reverse=True))
        object.__setattr__(self, "resolution", ratios)
        for field, values in (("depth", self.depth), ("width", self.width)):
            if len(values) != STAGES or min(values) < 1:
                raise InvalidArchitecture(f"{field}: {values}; allowed: {STAGES} integers of at least 1.")
        if max(self.depth) > 256 or max(self.width) > 8192:
            raise InvalidArchitecture(
                "depth and width: at most 256 blocks and 8192 channels per stage are allowed."
            )
        if not ratios or not 0 < ratios[-1] <= ratios[0] <= 4 or len(ratios) > 8:
            raise InvalidArchitecture(
                f"resolution: {short([str(ratio) for ratio in ratios])}; allowed: 1 to 8 ratios above 0 and up to 4."
            )

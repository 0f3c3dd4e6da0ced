"""What a network of this family is: depth and width per stage, one ratio per path, block and interaction."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

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


def _ratio(value: object) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, str | int | Fraction) or len(str(value)) > 20:
        raise ValueError(f"a ratio is written like '3/4' or 1, not {value!r}")
    try:
        return Fraction(value)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"a ratio is written like '3/4' or 1, not {value!r}") from None


Ratio: TypeAlias = Annotated[
    Fraction,
    PlainValidator(_ratio),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "pattern": r"^\d+(/\d+)?$", "examples": ["3/4", "1"]}),
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
                f"resolution: {[str(ratio) for ratio in self.resolution]}; allowed: 1 to 8 ratios above 0 and up to 4."
            )

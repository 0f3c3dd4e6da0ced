"""What a network of this family is: widths at 1/2, 1/4 and 1/8, residual blocks, their dilations, the decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from segtailor.core.codec import short
from segtailor.core.errors import InvalidArchitecture

MAX_CHANNELS, MAX_BLOCKS, MAX_DILATION = 8192, 256, 64


@dataclass(frozen=True, kw_only=True)
class DilatedResidualArchitecture:
    """`stem`, `quarter` and `eighth` are widths at 1/2, 1/4 and 1/8 of the image, `decoder` that of the way back.

    `quarter_blocks` residual blocks run at 1/4; at 1/8 there is one for each of `dilations`, which holds the dilation
    of its second convolution. `half` is the width of a second step of the decoder, at 1/2, for things as thin as
    poles; 0 leaves it out.
    """

    stem: int
    quarter: int
    quarter_blocks: int
    eighth: int
    dilations: tuple[int, ...]
    decoder: int
    half: int = 0

    def __post_init__(self) -> None:
        for field in ("stem", "quarter", "eighth", "decoder"):
            _check(field, getattr(self, field), MAX_CHANNELS)
        _check("half", self.half, MAX_CHANNELS, least=0)
        _check("quarter_blocks", self.quarter_blocks, MAX_BLOCKS)
        if not isinstance(self.dilations, Sequence) or not 1 <= len(self.dilations) <= MAX_BLOCKS:
            raise InvalidArchitecture(
                f"dilations: {short(self.dilations)}; allowed: a list of 1 to {MAX_BLOCKS} integers."
            )
        for position, value in enumerate(self.dilations):
            _check(f"dilations[{position}]", value, MAX_DILATION)


def _check(field: str, value: object, most: int, *, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidArchitecture(f"{field}: {short(value)}; allowed: an integer from {least} to {most}.")

"""What a network of this family is: how much of EfficientNet-Lite0 it keeps, at which input size, and its decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from segtailor.core.codec import short
from segtailor.core.errors import InvalidArchitecture

MAX_CHANNELS, MAX_EXPANSION = 8192, 64
MAX_SCALE = 2  # small images are enlarged: the encoder learnt from objects that fill larger ones
DETAIL_STRIDES = (4, 8)
DEEPEST_STRIDES = (32, 16, 8)


class ElasticStage(NamedTuple):
    """Inverted residuals of one width; the stride is that of the first, `blocks` are those of the whole encoder."""

    kernel: int
    channels: int
    blocks: int
    stride: int


# EfficientNet-Lite0 (Google, 2020) after its stem and first block, without its last stage of 320 channels.
STAGES = (
    ElasticStage(3, 24, 2, 2),
    ElasticStage(5, 40, 2, 2),
    ElasticStage(3, 80, 3, 2),
    ElasticStage(5, 112, 3, 1),
    ElasticStage(5, 192, 4, 2),
)
OPTIONAL_STAGE = len(STAGES) - 1  # the only stage that a network may leave out
EXPANSION = 6  # of the whole encoder; also what a stage without blocks says


@dataclass(frozen=True, kw_only=True)
class ElasticArchitecture:
    """`scale` is the size at which the encoder sees the image, as a fraction such as "3/4".

    `depths` are the blocks of each stage, `expansions` how many times as wide their inside is; the last stage may have
    no blocks. `decoder` is the width of the decoder, which ends at 1/`detail` of what the encoder sees. The deepest
    map is at 1/`deepest` of it: where that is finer than the usual 1/32, later stages keep the size and dilate their
    kernels instead, so that the weights fit as they are.
    """

    scale: str
    depths: tuple[int, ...]
    expansions: tuple[int, ...]
    decoder: int
    detail: int
    deepest: int = DEEPEST_STRIDES[0]

    def __post_init__(self) -> None:
        _check_scale(self.scale)
        for name in ("depths", "expansions"):
            values = getattr(self, name)
            if not isinstance(values, Sequence) or len(values) != len(STAGES):
                raise InvalidArchitecture(
                    f"{name}: {short(values)}; allowed: a list of {len(STAGES)} integers."
                )
        for number, (stage, depth, expansion) in enumerate(
            zip(STAGES, self.depths, self.expansions, strict=True)
        ):
            _check(f"depths[{number}]", depth, stage.blocks, least=0 if number == OPTIONAL_STAGE else 1)
            _check(f"expansions[{number}]", expansion, MAX_EXPANSION)
        if not self.depths[OPTIONAL_STAGE] and self.expansions[OPTIONAL_STAGE] != EXPANSION:
            raise InvalidArchitecture(
                f"expansions[{OPTIONAL_STAGE}]: {self.expansions[OPTIONAL_STAGE]}; a stage without blocks has "
                f"{EXPANSION}, so that a network is written in one way only."
            )
        _check("decoder", self.decoder, MAX_CHANNELS)
        if isinstance(self.detail, bool) or self.detail not in DETAIL_STRIDES:
            raise InvalidArchitecture(f"detail: {short(self.detail)}; allowed: 4 or 8.")
        if isinstance(self.deepest, bool) or self.deepest not in DEEPEST_STRIDES:
            raise InvalidArchitecture(f"deepest: {short(self.deepest)}; allowed: 8, 16 or 32.")

    @property
    def ratio(self) -> Fraction:
        """The scale as a number."""
        return Fraction(self.scale)


def _check_scale(scale: object) -> None:
    parts = scale.split("/") if isinstance(scale, str) and len(scale) <= 7 else []
    whole = all(part.isascii() and part.isdigit() and int(part) for part in parts)
    if not parts or len(parts) > 2 or not whole or not 0 < Fraction(str(scale)) <= MAX_SCALE:
        raise InvalidArchitecture(
            f'scale: {short(scale)}; allowed: a fraction up to {MAX_SCALE}, e.g. "3/4".'
        )
    if str(Fraction(str(scale))) != scale:
        raise InvalidArchitecture(f'scale: {short(scale)}; write "{Fraction(str(scale))}".')


def _check(field: str, value: object, most: int, *, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidArchitecture(f"{field}: {short(value)}; allowed: an integer from {least} to {most}.")

"""What a network of this family is: one of three fixed frames, and one of 13 candidates for each block of it.

Widths of the frames are those of the released networks, which reproduce the MACs of the paper's Table 1; its
appendices C.2 and C.3 print the columns of Large and XLarge the other way round. Candidates are in the order of
appendix B.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias, get_args

from segtailor.core.errors import InvalidArchitecture

FrameName: TypeAlias = Literal["small", "large", "xlarge"]
FRAME_NAMES: tuple[FrameName, ...] = get_args(FrameName)
Candidate: TypeAlias = Literal[
    "k3_d1_e1_g2", "k3_d1_e1_g1", "k3_d1_e3_g1", "k3_d1_e6_g1",
    "k3_d2_e1_g2", "k3_d2_e1_g1", "k3_d2_e3_g1", "k3_d2_e6_g1",
    "k5_d1_e1_g2", "k5_d1_e1_g1", "k5_d1_e3_g1", "k5_d1_e6_g1",
    "skip",
]  # fmt: skip
CANDIDATES: tuple[Candidate, ...] = get_args(Candidate)  # kernel, dilation, expansion, groups


@dataclass(frozen=True, kw_only=True)
class InvertedResidualArchitecture:
    """The frame, and the candidate of each of its blocks from the image to the decoder."""

    frame: FrameName
    blocks: tuple[Candidate, ...]

    def __post_init__(self) -> None:
        if self.frame not in FRAMES:
            raise InvalidArchitecture(f"frame: {self.frame!r}; allowed: {', '.join(FRAME_NAMES)}.")
        wanted = len(FRAMES[self.frame].blocks)
        if len(self.blocks) != wanted:
            raise InvalidArchitecture(
                f"blocks: {len(self.blocks)} candidates; the frame '{self.frame}' has {wanted} blocks, one each."
            )
        for index, candidate in enumerate(self.blocks):
            if candidate not in CANDIDATES:
                raise InvalidArchitecture(f"blocks.{index}: {candidate!r}; allowed: {', '.join(CANDIDATES)}.")


class BlockGroup(NamedTuple):
    """Consecutive blocks of one width; the stride is that of the first."""

    channels: int
    repeats: int
    stride: int


class BlockFrame(NamedTuple):
    """What is fixed about one block."""

    inputs: int
    outputs: int
    stride: int


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Stem, groups of searched blocks and decoder; `low_level` is the block whose output the decoder also reads."""

    stem: int
    groups: tuple[BlockGroup, ...]
    last: int | None  # width of a 1x1 convolution after the last block
    decoder: Literal["lr_aspp", "aspp"]
    decoder_channels: int
    low_level: int

    @property
    def blocks(self) -> tuple[BlockFrame, ...]:
        """The searched blocks in order."""
        outputs = [group.channels for group in self.groups for _ in range(group.repeats)]
        strides = [
            group.stride if repeat == 0 else 1 for group in self.groups for repeat in range(group.repeats)
        ]
        widths = pairwise([self.stem, *outputs])
        return tuple(
            BlockFrame(before, after, stride) for (before, after), stride in zip(widths, strides, strict=True)
        )


FRAMES: dict[FrameName, Frame] = {
    "small": Frame(
        stem=16,
        groups=(
            BlockGroup(16, 4, 2), BlockGroup(24, 4, 2), BlockGroup(40, 4, 2), BlockGroup(48, 4, 1),
            BlockGroup(96, 4, 1),
        ),
        last=256,
        decoder="lr_aspp",
        decoder_channels=128,
        low_level=7,
    ),
    "large": Frame(
        stem=16,
        groups=(
            BlockGroup(16, 1, 1), BlockGroup(24, 4, 2), BlockGroup(32, 4, 2), BlockGroup(64, 4, 2),
            BlockGroup(96, 4, 1), BlockGroup(160, 4, 1), BlockGroup(160, 1, 1),
        ),
        last=None,
        decoder="lr_aspp",
        decoder_channels=128,
        low_level=8,
    ),
    "xlarge": Frame(
        stem=48,
        groups=(
            BlockGroup(24, 1, 1), BlockGroup(32, 4, 2), BlockGroup(48, 4, 2), BlockGroup(96, 4, 2),
            BlockGroup(144, 4, 1), BlockGroup(240, 4, 1), BlockGroup(320, 1, 1),
        ),
        last=None,
        decoder="aspp",
        decoder_channels=160,
        low_level=4,
    ),
}  # fmt: skip

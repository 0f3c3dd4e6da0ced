"""The three macro spaces: what is fixed around the searched blocks.

Widths are those of the released networks, which reproduce the MACs of the paper's Table 1; its appendices C.2 and
C.3 print the columns of Large and XLarge the other way round.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias, get_args

FrameName: TypeAlias = Literal["small", "large", "xlarge"]
FRAME_NAMES: tuple[FrameName, ...] = get_args(FrameName)


class Group(NamedTuple):
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
    groups: tuple[Group, ...]
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
        groups=(Group(16, 4, 2), Group(24, 4, 2), Group(40, 4, 2), Group(48, 4, 1), Group(96, 4, 1)),
        last=256,
        decoder="lr_aspp",
        decoder_channels=128,
        low_level=7,
    ),
    "large": Frame(
        stem=16,
        groups=(
            Group(16, 1, 1), Group(24, 4, 2), Group(32, 4, 2), Group(64, 4, 2),
            Group(96, 4, 1), Group(160, 4, 1), Group(160, 1, 1),
        ),
        last=None,
        decoder="lr_aspp",
        decoder_channels=128,
        low_level=8,
    ),
    "xlarge": Frame(
        stem=48,
        groups=(
            Group(24, 1, 1), Group(32, 4, 2), Group(48, 4, 2), Group(96, 4, 2),
            Group(144, 4, 1), Group(240, 4, 1), Group(320, 1, 1),
        ),
        last=None,
        decoder="aspp",
        decoder_channels=160,
        low_level=4,
    ),
}  # fmt: skip

"""What a network of this family is: a frame, and one candidate per block."""

from __future__ import annotations

from dataclasses import dataclass

from segtailor.core.errors import InvalidArchitecture
from segtailor.spaces.inverted_residual.candidates import CANDIDATES, Candidate
from segtailor.spaces.inverted_residual.frames import FRAME_NAMES, FRAMES, FrameName


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

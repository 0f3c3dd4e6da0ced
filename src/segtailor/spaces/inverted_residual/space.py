"""Decisions and plans of the family (SqueezeNAS sections 3 and 4, appendices B and C)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from segtailor.core.errors import InvalidArchitecture
from segtailor.core.plan import IMAGE, OpCall, Plan, PlanBuilder, Shape
from segtailor.core.space import SPACES, Decision, Picks, check_picks
from segtailor.core.variation import Growth
from segtailor.ops import Conv
from segtailor.spaces.inverted_residual.architecture import InvertedResidualArchitecture
from segtailor.spaces.inverted_residual.candidates import CANDIDATES, operator
from segtailor.spaces.inverted_residual.decoder import aspp, lr_aspp
from segtailor.spaces.inverted_residual.frames import FRAME_NAMES, FRAMES, Frame, FrameName
from segtailor.spaces.inverted_residual.growth import growth

if TYPE_CHECKING:
    from segtailor.nets.network import Network
    from segtailor.nets.supernet import SupernetSettings
    from segtailor.nets.weights import NameMap
    from segtailor.spaces.inverted_residual.supernet import InvertedResidualSupernet

DECODERS = {"lr_aspp": lr_aspp, "aspp": aspp}


@SPACES.register("inverted_residual")
@dataclass(frozen=True, kw_only=True)
class InvertedResidual:
    """One of 13 candidates for each block of a frame."""

    frame: FrameName = "small"

    architecture_type: ClassVar[type] = InvertedResidualArchitecture

    def __post_init__(self) -> None:
        if self.frame not in FRAMES:
            raise InvalidArchitecture(f"frame: {self.frame!r}; allowed: {', '.join(FRAME_NAMES)}.")

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The candidate of each block, from the image to the decoder."""
        return tuple(
            Decision(name=f"block{index}", options=CANDIDATES, group="op")
            for index in range(len(FRAMES[self.frame].blocks))
        )

    def architecture(self, picks: Picks) -> InvertedResidualArchitecture:
        """Decode picks."""
        check_picks(self.decisions, picks)
        blocks = tuple(CANDIDATES[picks[decision.name]] for decision in self.decisions)
        return InvertedResidualArchitecture(frame=self.frame, blocks=blocks)

    def picks(self, arch: InvertedResidualArchitecture) -> Picks:
        """Encode an architecture."""
        if arch.frame != self.frame:
            raise InvalidArchitecture(f"frame: '{arch.frame}'; this space allows '{self.frame}' only.")
        return {
            decision.name: CANDIDATES.index(candidate)
            for decision, candidate in zip(self.decisions, arch.blocks, strict=True)
        }

    def plan(self, arch: InvertedResidualArchitecture, image: Shape, classes: int) -> Plan:
        """Expand an architecture to its layers."""
        frame = FRAMES[arch.frame]
        build = PlanBuilder(image)
        source = build.add("stem", Conv(kernel=3), IMAGE, channels=frame.stem, stride=2)
        for index, (candidate, block) in enumerate(zip(arch.blocks, frame.blocks, strict=True)):
            source = build.add(
                f"block{index}",
                operator(candidate, block),
                source,
                channels=block.outputs,
                stride=block.stride,
            )
        if frame.last is not None:
            source = build.add("last", Conv(kernel=1), source, channels=frame.last)
        head = _decoder(build, frame, source, classes)
        return build.plan(outputs={"main": head}, align_corners=True)

    def calls(self, image: Shape, classes: int) -> Iterator[OpCall]:
        """Yield every call of any plan: no candidate changes what another block reads, so one plan each covers all."""
        seen: set[OpCall] = set()
        blocks = len(FRAMES[self.frame].blocks)
        for candidate in CANDIDATES:
            uniform = InvertedResidualArchitecture(frame=self.frame, blocks=(candidate,) * blocks)
            for call in self.plan(uniform, image, classes).calls:
                if call not in seen:
                    seen.add(call)
                    yield call

    def growth(self) -> Growth:
        """Return how a network grows: expansion and kernel, group by group."""
        return growth(self.frame)

    def supernet(
        self, image: Shape, classes: int, *, settings: SupernetSettings | None = None
    ) -> InvertedResidualSupernet:
        """Build the network that holds all candidates of all blocks."""
        from segtailor.nets.supernet import SupernetSettings
        from segtailor.spaces.inverted_residual.supernet import InvertedResidualSupernet

        return InvertedResidualSupernet(self, image, classes, settings or SupernetSettings())

    def discretise(self, probabilities: Mapping[str, Sequence[float]]) -> Picks:
        """Return the most likely candidate of every block."""
        from segtailor.nets.supernet import most_likely

        return most_likely(self.decisions, probabilities)

    @staticmethod
    def published_names(network: Network, arch: InvertedResidualArchitecture) -> NameMap:
        """Return how the reference project names the weights of this network."""
        from segtailor.spaces.inverted_residual.names import published_names

        return published_names(network, arch)


def _decoder(build: PlanBuilder, frame: Frame, last: str, classes: int) -> str:
    decode = DECODERS[frame.decoder]
    return decode(build, last, f"block{frame.low_level}", channels=frame.decoder_channels, classes=classes)

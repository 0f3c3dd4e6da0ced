"""Decisions, plans and growth of the family (SqueezeNAS sections 3 and 4, appendices B and C)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from segtailor.core.errors import InvalidArchitecture
from segtailor.core.plan import IMAGE, OpCall, Operator, Plan, PlanBuilder, Shape
from segtailor.core.space import Decision, Picks, check_picks
from segtailor.core.variation import Coordinates, Direction, Growth
from segtailor.ops import Concat, Conv, FactorisedReduction, Identity, Resize, Sum
from segtailor.ops import InvertedBottleneck as InvertedResidualOp
from segtailor.ops.attention import Gate
from segtailor.ops.pooling import GlobalMean, WindowPool
from segtailor.spaces.inverted_residual.architecture import (
    CANDIDATES,
    FRAME_NAMES,
    FRAMES,
    BlockFrame,
    Candidate,
    Frame,
    FrameName,
    InvertedResidualArchitecture,
)

if TYPE_CHECKING:
    from segtailor.nets.network import Network
    from segtailor.nets.supernet import SupernetSettings
    from segtailor.nets.weights import NameMap
    from segtailor.spaces.inverted_residual.supernet import InvertedResidualSupernet

POINT = Conv(kernel=1)
LINEAR = Conv(kernel=1, norm=False, bias=True, activation="none")
ASPP_DILATIONS = (6, 12, 18)
EXPANSIONS = ("skip", "e1_g2", "e1_g1", "e3_g1", "e6_g1")  # ascending in cost
KERNELS = ("k3_d1", "k3_d2", "k5_d1")  # ascending in receptive field, then in cost
START_EXPANSION = 1  # index of the cheapest expansion that computes something


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
                block_operator(candidate, block),
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
        """Return how a network grows: expansion and kernel of one group of blocks at a time (no paper has this)."""
        return _growth(self.frame)

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


def block_operator(candidate: Candidate, block: BlockFrame) -> Operator:
    """Return what a candidate computes in a block, the residual sum included."""
    if candidate == "skip":
        return _skip(block)
    kernel, dilation, expansion, groups = (int(part[1:]) for part in candidate.split("_"))
    return InvertedResidualOp(kernel=kernel, dilation=dilation, expansion=expansion, groups=groups)


def _skip(block: BlockFrame) -> Operator:
    """Pass the input on; where shapes change, by the cheapest layer that changes them."""
    if block.stride != 1:
        return FactorisedReduction(first=True, norm="each")
    if block.inputs != block.outputs:
        return Conv(kernel=1, first=True)
    return Identity()


def _decoder(build: PlanBuilder, frame: Frame, last: str, classes: int) -> str:
    """Write the frame's decoder: it reads the last map and one earlier block, and gives logits at the latter's size."""
    decode = {"lr_aspp": _lr_aspp, "aspp": _aspp}[frame.decoder]
    return decode(build, last, f"block{frame.low_level}", channels=frame.decoder_channels, classes=classes)


def _lr_aspp(build: PlanBuilder, last: str, low: str, *, channels: int, classes: int) -> str:
    """Gate the last map by its own windowed means, then add the logits of both maps; return the output."""
    features = build.add("decoder_features", POINT, last, channels=channels)
    window = build.add("decoder_window", WindowPool(), last)
    attention = build.add(
        "decoder_attention",
        Conv(kernel=1, norm=False, bias=True, activation="sigmoid"),
        window,
        channels=channels,
    )
    gated = build.add("decoder_gated", Gate(align_corners=False), features, attention)
    resized = build.add("decoder_resized", Resize(align_corners=False), gated, low)
    high = build.add("decoder_high", LINEAR, resized, channels=classes)
    detail = build.add("decoder_low", LINEAR, low, channels=classes)
    return build.add("head", Sum(), high, detail)


def _aspp(build: PlanBuilder, last: str, low: str, *, channels: int, classes: int) -> str:
    """Join four fields of view and the mean of the last map, refine with the low map; return the output."""
    views = [build.add("decoder_point", POINT, last, channels=channels)]
    for dilation in ASPP_DILATIONS:
        # "Fully depthwise" in the paper: as many groups as outputs, so each output reads two of the 320 inputs.
        op = Conv(kernel=3, dilation=dilation, groups=channels)
        views.append(build.add(f"decoder_dilated{dilation}", op, last, channels=channels))
    views.append(build.add("decoder_mean", GlobalMean(), last))
    joined = _concat(build, "decoder_joined", views, Concat())
    fused = build.add("decoder_fused", POINT, joined, channels=channels)
    detail = build.add("decoder_low", LINEAR, low)
    merged = _concat(build, "decoder_merged", [fused, detail], Concat(like=1, align_corners=True))
    refined = build.add("decoder_refined", Conv(kernel=3, groups=0), merged)
    return build.add("head", LINEAR, refined, channels=classes)


def _concat(build: PlanBuilder, name: str, maps: list[str], op: Concat) -> str:
    return build.add(name, op, *maps, channels=sum(build.shape(source).channels for source in maps))


def _growth(frame: FrameName) -> Growth:
    """Return the growth of a frame: two directions per group of blocks of one width."""
    blocks = range(len(FRAMES[frame].blocks))
    directions, first = [], 0
    for index, group in enumerate(FRAMES[frame].groups):
        members = range(first, first + group.repeats)
        for part in ("expansion", "kernel"):
            delta = {f"{part}{block}": 1 for block in members}
            directions.append(Direction(name=f"{part} of group {index}", delta=delta))
        first += group.repeats

    def build(coordinates: Coordinates) -> InvertedResidualArchitecture:
        chosen = tuple(
            _candidate(int(coordinates[f"expansion{block}"]), int(coordinates[f"kernel{block}"]))
            for block in blocks
        )
        return InvertedResidualArchitecture(frame=frame, blocks=chosen)

    top = {f"expansion{block}": len(EXPANSIONS) - 1 for block in blocks}
    top |= {f"kernel{block}": len(KERNELS) - 1 for block in blocks}
    start = {f"expansion{block}": START_EXPANSION for block in blocks} | {
        f"kernel{block}": 0 for block in blocks
    }
    return Growth(start=start, directions=tuple(directions), build=build, locate=_locate, top=top)


def _candidate(expansion: int, kernel: int) -> Candidate:
    if expansion == 0:
        return "skip"
    return CANDIDATES[CANDIDATES.index(f"{KERNELS[kernel]}_{EXPANSIONS[expansion]}")]


def _locate(arch: InvertedResidualArchitecture) -> Coordinates:
    coordinates: dict[str, int] = {}
    for block, candidate in enumerate(arch.blocks):
        kernel, expansion = (KERNELS[0], "skip") if candidate == "skip" else (candidate[:5], candidate[6:])
        coordinates[f"expansion{block}"] = EXPANSIONS.index(expansion)
        coordinates[f"kernel{block}"] = KERNELS.index(kernel)
    return coordinates

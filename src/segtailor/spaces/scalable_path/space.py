"""Decisions, plans and growth of the family (LPS-Net sections 3.1 to 3.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import combinations_with_replacement, product
from typing import TYPE_CHECKING, ClassVar

from segtailor.core.errors import InvalidArchitecture
from segtailor.core.plan import IMAGE, OpCall, Operator, Plan, PlanBuilder, Shape
from segtailor.core.space import Decision, Picks, check_picks, picks_of
from segtailor.core.variation import Coordinates, Direction, Growth
from segtailor.ops import Concat, Conv, InvertedBottleneck, RepConv, ScaleImage, Separable
from segtailor.ops.blocks import Bottleneck, Ghost, Residual, Shuffle
from segtailor.spaces.scalable_path.architecture import STAGES, Block, Interaction, ScalablePathArchitecture
from segtailor.spaces.scalable_path.interaction import interact

if TYPE_CHECKING:
    from segtailor.nets.network import Network
    from segtailor.nets.weights import NameMap

INTERACTION_AFTER = (2, 3)  # the stages (from 0) after which paths exchange features
STRIDES = (2, 2, 2, 2, 1)  # of the stages
# Table 2 of the paper.
BLOCK_OPERATORS: dict[Block, Operator] = {
    "conv": RepConv(),
    "residual": Residual(),
    "bottleneck": Bottleneck(),
    "separable": Separable(),
    "inverted_residual": InvertedBottleneck(activation="relu6"),
    "ghost": Ghost(),
    "shuffle": Shuffle(),
}
# Start and the operations of the expansion, Table 4; each path adds one, a step of its ratio.
START_DEPTH = (1, 1, 1, 1, 1)
START_WIDTH = (4, 8, 16, 32, 32)
START_RATIO = Fraction(1, 2)
DEPTH_STEPS = ((0, 1, 1, 1, 1), (0, 0, 1, 1, 1), (0, 0, 0, 1, 1))
WIDTH_STEPS = ((4, 8, 16, 32, 32), (0, 8, 16, 32, 32), (0, 0, 16, 32, 32), (0, 0, 0, 32, 32))
RATIO_STEP = Fraction(1, 8)


@dataclass(frozen=True, kw_only=True)
class ScalablePath:
    """Depth and width per stage and ratio per path, in the steps of LPS-Net's expansion.

    `width_steps` multiply (4, 8, 16, 32, 32), the first step of widths in Table 4.
    """

    depths: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 10)
    width_steps: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7)
    ratios: tuple[str, ...] = (
        "0",
        "1/8",
        "1/4",
        "3/8",
        "1/2",
        "5/8",
        "3/4",
        "7/8",
        "1",
        "9/8",
        "5/4",
        "11/8",
    )
    paths: int = 3
    block: Block = "conv"
    interaction: Interaction = "bilateral_b"

    architecture_type: ClassVar[type] = ScalablePathArchitecture
    base_width: ClassVar[tuple[int, ...]] = (4, 8, 16, 32, 32)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Depth and width of each stage, then the ratio of each path; the first path always exists."""
        rows = []
        for stage in range(STAGES):
            rows.append(Decision(name=f"depth{stage}", options=self.depths, group="depth", ordered=True))
        for stage in range(STAGES):
            widths = tuple(self.base_width[stage] * step for step in self.width_steps)
            rows.append(Decision(name=f"width{stage}", options=widths, group="width", ordered=True))
        for path in range(self.paths):
            ratios = self.ratios[1:] if path == 0 else self.ratios
            rows.append(Decision(name=f"resolution{path}", options=ratios, group="resolution", ordered=True))
        return tuple(rows)

    def architecture(self, picks: Picks) -> ScalablePathArchitecture:
        """Decode picks."""
        check_picks(self.decisions, picks)
        values = {decision.name: decision.options[picks[decision.name]] for decision in self.decisions}
        return ScalablePathArchitecture(
            depth=tuple(values[f"depth{stage}"] for stage in range(STAGES)),  # type: ignore[arg-type]
            width=tuple(values[f"width{stage}"] for stage in range(STAGES)),  # type: ignore[arg-type]
            resolution=tuple(Fraction(str(values[f"resolution{path}"])) for path in range(self.paths)),
            block=self.block,
            interaction=self.interaction,
        )

    def picks(self, arch: ScalablePathArchitecture) -> Picks:
        """Encode an architecture; paths are in descending order, absent ones last."""
        absent = self.paths - len(arch.resolution)
        if absent < 0:
            raise InvalidArchitecture(
                f"resolution: {len(arch.resolution)} paths; this space allows {self.paths}."
            )
        ratios = [*map(str, arch.resolution), *["0"] * absent]
        rows = {"depth": arch.depth, "width": arch.width, "resolution": ratios}
        values = {f"{name}{place}": value for name, row in rows.items() for place, value in enumerate(row)}
        return picks_of(self.decisions, values)

    def plan(self, arch: ScalablePathArchitecture, image: Shape, classes: int) -> Plan:
        """Write the layers: path inputs, five stages with interactions, fusion, head."""
        build = PlanBuilder(image)
        maps = [
            build.add(f"path{path}_input", ScaleImage(ratio=ratio), IMAGE) if ratio != 1 else IMAGE
            for path, ratio in enumerate(arch.resolution)
        ]
        for stage in range(STAGES):
            maps = [_stage(build, arch, path, stage, source) for path, source in enumerate(maps)]
            if stage in INTERACTION_AFTER:
                maps = interact(build, arch.interaction, f"exchange{stage}", maps)
        fused = maps[0]
        if len(maps) > 1:
            fused = build.add(
                "fusion", Concat(align_corners=True), *maps, channels=len(maps) * arch.width[-1]
            )
        head = build.add(
            "head", Conv(kernel=1, norm=False, bias=True, activation="none"), fused, channels=classes
        )
        return build.plan(outputs={"main": head}, align_corners=True)

    def calls(self, image: Shape, classes: int) -> Iterator[OpCall]:
        """Yield every call of any plan: per stage and ratio, and per set of ratios for what joins paths."""
        seen: set[OpCall] = set()
        for plan in self._covering_plans(image, classes):
            for call in plan.calls:
                if call not in seen:
                    seen.add(call)
                    yield call

    def growth(self) -> Growth:
        """Return how LPS-Net's expansion grows a network; it may leave the options of `decisions` behind."""
        make = partial(ScalablePathArchitecture, block=self.block, interaction=self.interaction)
        return _growth(self.paths, make)

    @staticmethod
    def published_names(network: Network, arch: ScalablePathArchitecture) -> NameMap:
        """Return how the reference project names the weights of this network."""
        from segtailor.spaces.scalable_path.names import published_names

        return published_names(network, arch)

    def _covering_plans(self, image: Shape, classes: int) -> Iterator[Plan]:
        """Yield plans that together make every call: calls depend on two neighbouring widths and on the ratios only."""
        widths = [[base * step for step in self.width_steps] for base in self.base_width]
        size = len(self.width_steps)
        pairs = list(product(range(size), repeat=2))
        for ratio in self.ratios[1:]:
            for even, odd in pairs:
                width = tuple(widths[stage][even if stage % 2 == 0 else odd] for stage in range(STAGES))
                yield self.plan(self._probe(width, (ratio,)), image, classes)
        for count in range(2, self.paths + 1):
            for ratios in combinations_with_replacement(self.ratios[1:], count):
                for step in range(size):
                    width = tuple(widths[stage][step] for stage in range(STAGES))
                    yield self.plan(self._probe(width, ratios), image, classes)

    def _probe(self, width: tuple[int, ...], ratios: tuple[str, ...]) -> ScalablePathArchitecture:
        depth = 2 if max(self.depths) > 1 else 1
        return ScalablePathArchitecture(
            depth=(depth,) * STAGES,  # type: ignore[arg-type]
            width=width,  # type: ignore[arg-type]
            resolution=tuple(Fraction(ratio) for ratio in ratios),
            block=self.block,
            interaction=self.interaction,
        )


def _stage(build: PlanBuilder, arch: ScalablePathArchitecture, path: int, stage: int, source: str) -> str:
    op = BLOCK_OPERATORS[arch.block]
    for block in range(arch.depth[stage]):
        stride = STRIDES[stage] if block == 0 else 1
        name = f"path{path}_stage{stage}_block{block}"
        source = build.add(name, op, source, channels=arch.width[stage], stride=stride)
    return source


def _growth(paths: int, make: Callable[..., ScalablePathArchitecture]) -> Growth:
    """Return the growth of networks with up to `paths` paths; `make` adds block and interaction.

    Ratios keep their positions while growing; the architecture drops zeros and sorts them.
    """
    directions = [_direction("depth", delta) for delta in DEPTH_STEPS]
    directions += [_direction("width", delta) for delta in WIDTH_STEPS]
    for path in range(paths):
        delta = tuple(RATIO_STEP if path == other else 0 for other in range(paths))
        directions.append(_direction("resolution", delta))

    def build(coordinates: Coordinates) -> ScalablePathArchitecture:
        return make(
            depth=tuple(int(coordinates[f"depth{stage}"]) for stage in range(STAGES)),
            width=tuple(int(coordinates[f"width{stage}"]) for stage in range(STAGES)),
            resolution=tuple(Fraction(coordinates[f"resolution{path}"]) for path in range(paths)),
        )

    def locate(arch: ScalablePathArchitecture) -> Coordinates:
        if len(arch.resolution) > paths:
            raise InvalidArchitecture(f"resolution: {len(arch.resolution)} paths; this space allows {paths}.")
        ratios = (*arch.resolution, *[Fraction(0)] * (paths - len(arch.resolution)))
        return _coordinates(arch.depth, arch.width, ratios)

    start = _coordinates(START_DEPTH, START_WIDTH, (START_RATIO, *[Fraction(0)] * (paths - 1)))
    return Growth(start=start, directions=tuple(directions), build=build, locate=locate)


def _direction(dimension: str, delta: tuple[int | Fraction, ...]) -> Direction:
    steps = {f"{dimension}{index}": step for index, step in enumerate(delta) if step}
    return Direction(name=f"{dimension} {{{','.join(map(str, delta))}}}", delta=steps)


def _coordinates(depth: tuple[int, ...], width: tuple[int, ...], ratios: tuple[Fraction, ...]) -> Coordinates:
    values: dict[str, int | Fraction] = {f"depth{stage}": value for stage, value in enumerate(depth)}
    values |= {f"width{stage}": value for stage, value in enumerate(width)}
    return values | {f"resolution{path}": value for path, value in enumerate(ratios)}

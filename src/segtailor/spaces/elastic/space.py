"""Decisions and plans of the family.

All networks are parts of one encoder, so each takes its ImageNet weights over whole or nearly so (`spaces.starts`): a
short training then tells good ones from bad ones, which it does not from random weights. The decoder is that of LR-ASPP
(Howard et al., ICCV 2019) with one more level: the deepest map, gated by its means, joined with one or two finer ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, ClassVar

from segtailor.core.plan import IMAGE, OpCall, Plan, PlanBuilder, Shape
from segtailor.core.space import Decision, Picks, check_picks, picks_of
from segtailor.ops import Conv, InvertedBottleneck, Resize, ScaleImage, Separable, Sum
from segtailor.ops.attention import Gate
from segtailor.ops.convolutions import Activate
from segtailor.ops.pooling import BinPool
from segtailor.spaces.elastic.architecture import (
    DEEPEST_STRIDES,
    DETAIL_STRIDES,
    EXPANSION,
    OPTIONAL_STAGE,
    STAGES,
    ElasticArchitecture,
)

if TYPE_CHECKING:
    from segtailor.spaces.elastic.supernet import ElasticSupernet

EPS = 1e-3  # of the encoder's norms
STEM_WIDTH, FIRST_WIDTH = 32, 16
STEM_STRIDE = 2
STEM = Conv(activation="relu6", same=True, eps=EPS)
FIRST = InvertedBottleneck(expansion=1, expand=False, activation="relu6", same=True, eps=EPS)
POINT = Conv(kernel=1)
BARE_POINT = Conv(kernel=1, activation="none")
ATTENTION = Conv(kernel=1, norm=False, bias=True, activation="sigmoid")
SCORES = Conv(kernel=1, norm=False, bias=True, activation="none")
QUARTER_STAGE, EIGHTH_STAGE = 0, 1  # whose last maps are at 1/4 and 1/8 of what the encoder sees


@dataclass(frozen=True, kw_only=True)
class Elastic:
    """Input size, stride of the deepest map, depth and expansion of every stage, width and end of the decoder."""

    scales: tuple[str, ...] = ("3/8", "1/2", "5/8", "3/4", "1")
    expansions: tuple[int, ...] = (2, 3, 4, 6)
    decoders: tuple[int, ...] = (32, 48, 64, 96, 128, 192, 256)
    deepest: tuple[int, ...] = DEEPEST_STRIDES

    architecture_type: ClassVar[type] = ElasticArchitecture

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The input size and the deepest stride, then depth and expansion stage by stage, then the decoder."""
        rows = [
            Decision(name="scale", options=self.scales, group="resolution", ordered=True),
            Decision(name="deepest", options=self.deepest, group="resolution", ordered=True),
        ]
        for number, stage in enumerate(STAGES):
            least = 0 if number == OPTIONAL_STAGE else 1
            depths = tuple(range(least, stage.blocks + 1))
            rows.append(Decision(name=f"depth{number}", options=depths, group="depth", ordered=True))
            rows.append(
                Decision(name=f"expansion{number}", options=self.expansions, group="width", ordered=True)
            )
        rows.append(Decision(name="decoder", options=self.decoders, group="width", ordered=True))
        rows.append(Decision(name="detail", options=DETAIL_STRIDES, group="path", ordered=False))
        return tuple(rows)

    def architecture(self, picks: Picks) -> ElasticArchitecture:
        """Decode picks; a stage without blocks has the expansion of the encoder, whatever was picked."""
        check_picks(self.decisions, picks)
        values = {decision.name: decision.options[picks[decision.name]] for decision in self.decisions}
        depths = tuple(int(str(values[f"depth{number}"])) for number in range(len(STAGES)))
        expansions = tuple(
            int(str(values[f"expansion{number}"])) if depth else EXPANSION
            for number, depth in enumerate(depths)
        )
        return ElasticArchitecture(
            scale=str(values["scale"]),
            depths=depths,
            expansions=expansions,
            decoder=int(str(values["decoder"])),
            detail=int(str(values["detail"])),
            deepest=int(str(values["deepest"])),
        )

    def picks(self, arch: ElasticArchitecture) -> Picks:
        """Encode an architecture."""
        values: dict[str, object] = {
            "scale": arch.scale, "deepest": arch.deepest, "decoder": arch.decoder, "detail": arch.detail,
        }  # fmt: skip
        for number, (depth, expansion) in enumerate(zip(arch.depths, arch.expansions, strict=True)):
            values[f"depth{number}"] = depth
            values[f"expansion{number}"] = expansion
        return picks_of(self.decisions, values)

    def first_guesses(self) -> Iterator[ElasticArchitecture]:
        """Yield networks that keep whole blocks of the encoder, so that what it learnt stays: depths at all sizes."""
        full = tuple(stage.blocks for stage in STAGES)
        shorter = tuple(max(1, blocks - 1) for blocks in full)
        ends = {(*depths[:-1], last) for depths in (full, shorter) for last in (0, 1, depths[-1])}
        widest = max(self.expansions)
        decoders = self.decoders[len(self.decoders) // 2 :: 2]
        for scale, depths, deepest, decoder in product(self.scales, sorted(ends), self.deepest, decoders):
            yield ElasticArchitecture(
                scale=scale,
                depths=depths,
                deepest=deepest,
                expansions=tuple(widest if depth else EXPANSION for depth in depths),
                decoder=decoder,
                detail=DETAIL_STRIDES[0],
            )

    def supernet(self, image: Shape, classes: int) -> ElasticSupernet:
        """Return shared weights for all networks; they do not depend on the size of images."""
        from segtailor.spaces.elastic.supernet import ElasticSupernet

        return ElasticSupernet(self, classes, channels=image.channels)

    def plan(self, arch: ElasticArchitecture, image: Shape, classes: int) -> Plan:
        """Write the layers: the image at its scale, the encoder, the decoder, and a head on the deepest map."""
        build = PlanBuilder(image)
        source = IMAGE
        if arch.ratio != 1:
            source = build.add("scaled", ScaleImage(ratio=arch.ratio, align_corners=False), source)
        source = build.add("stem", STEM, source, channels=STEM_WIDTH, stride=STEM_STRIDE)
        source = build.add("stage_first", FIRST, source, channels=FIRST_WIDTH)
        ends, reached, dilation = [], STEM_STRIDE, 1
        for number, (stage, depth, expansion) in enumerate(
            zip(STAGES, arch.depths, arch.expansions, strict=True)
        ):
            op = InvertedBottleneck(
                kernel=stage.kernel, expansion=expansion, activation="relu6", same=True, eps=EPS
            )
            stride = stage.stride if reached * stage.stride <= arch.deepest else 1
            dilations = (dilation, dilation * stage.stride // stride)  # of the first block, and after it
            for block in range(depth):
                source = build.add(
                    f"stage{number}_block{block}",
                    replace(op, dilation=dilations[min(block, 1)]),
                    source,
                    channels=stage.channels,
                    stride=stride if block == 0 else 1,
                )
            reached, dilation = reached * stride, dilations[1]
            ends.append(source)
        context = _gated(build, source, arch.decoder)
        joined = _joined(build, "eighth", context, ends[EIGHTH_STAGE], arch.decoder)
        if arch.detail == DETAIL_STRIDES[0]:
            joined = _joined(build, "quarter", joined, ends[QUARTER_STAGE], arch.decoder)
        refined = build.add("refined", Separable(), joined)
        return build.plan(
            outputs={
                "main": build.add("head", SCORES, refined, channels=classes),
                "aux1": build.add("aux_head", SCORES, source, channels=classes),
            },
            align_corners=False,
        )

    def calls(self, image: Shape, classes: int) -> Iterator[OpCall]:
        """Yield every call of any plan: those of an encoder block depend on its own stage and the scale alone."""
        seen: set[OpCall] = set()
        full = tuple(stage.blocks for stage in STAGES)
        for scale, deepest, expansion, decoder, detail, last in product(
            self.scales, self.deepest, self.expansions, self.decoders, DETAIL_STRIDES, (0, full[-1])
        ):
            arch = ElasticArchitecture(
                scale=scale,
                depths=(*full[:-1], last),
                expansions=(*(expansion for _ in full[:-1]), expansion if last else EXPANSION),
                decoder=decoder,
                detail=detail,
                deepest=deepest,
            )
            for call in self.plan(arch, image, classes).calls:
                if call not in seen:
                    seen.add(call)
                    yield call


def _gated(build: PlanBuilder, source: str, width: int) -> str:
    """Narrow the deepest map, and weigh its channels by what the whole picture shows."""
    features = build.add("context", POINT, source, channels=width)
    means = build.add("context_mean", BinPool(bins=1), source)
    attention = build.add("context_attention", ATTENTION, means, channels=width)
    return build.add("context_gated", Gate(align_corners=False), features, attention)


def _joined(build: PlanBuilder, name: str, coarse: str, fine: str, width: int) -> str:
    """Add a finer map, narrowed, to a coarser one of the decoder."""
    narrow = build.add(f"{name}_narrow", BARE_POINT, fine, channels=width)
    enlarged = build.add(f"{name}_resized", Resize(), coarse, narrow)
    joined = build.add(f"{name}_joined", Sum(), narrow, enlarged)
    return build.add(f"{name}_joined_relu", Activate(), joined)

"""Decisions and plans of the family.

On small datasets, networks do well that stay at 1/8 and get a large receptive field by dilation instead of shrinking
further (ERFNet, Romera et al. 2018; DABNet, Li et al. 2019): detail is kept, and dense 3x3 convolutions of few channels
are fast on any device. The family has plain residual blocks and a short decoder at 1/4, or further at 1/2; widths,
depths and dilations are searched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice, product
from typing import ClassVar

from segtailor.core.errors import InvalidArchitecture
from segtailor.core.plan import IMAGE, OpCall, Plan, PlanBuilder, Shape
from segtailor.core.space import Decision, Group, Picks, check_picks, picks_of
from segtailor.ops import Conv, Sum
from segtailor.ops.convolutions import Activate
from segtailor.spaces.dilated_residual.architecture import DilatedResidualArchitecture

CONV = Conv()
BARE_POINT = Conv(kernel=1, activation="none")
SCORES = Conv(kernel=1, norm=False, bias=True, activation="none")


@dataclass(frozen=True, kw_only=True)
class DilatedResidual:
    """Widths at three scales, depths at two, and the rhythm in which dilations repeat.

    `halves` are widths of the decoder at 1/2; with a single one nothing is decided.
    """

    stems: tuple[int, ...] = (8, 16, 24, 32, 48)
    quarters: tuple[int, ...] = (8, 16, 24, 32, 48, 64, 96, 128)
    quarter_blocks: tuple[int, ...] = (1, 2, 3, 4)
    eighths: tuple[int, ...] = (8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192)
    blocks: tuple[int, ...] = (3, 4, 5, 6, 7, 8, 10, 12)
    rhythms: tuple[str, ...] = ("1", "1-2", "1-2-4", "1-2-4-8", "2-4-8", "1-2-4-8-2-4-8")
    decoders: tuple[int, ...] = (8, 16, 24, 32, 48, 64, 96)
    halves: tuple[int, ...] = (0,)

    architecture_type: ClassVar[type] = DilatedResidualArchitecture

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Widths from the image inwards, then depths, the rhythm, and the decoder."""
        rows: list[tuple[str, tuple[int, ...] | tuple[str, ...], Group]] = [
            ("stem", self.stems, "width"),
            ("quarter", self.quarters, "width"),
            ("eighth", self.eighths, "width"),
            ("decoder", self.decoders, "width"),
            ("quarter_blocks", self.quarter_blocks, "depth"),
            ("blocks", self.blocks, "depth"),
            ("rhythm", self.rhythms, "op"),
        ]
        if len(self.halves) > 1:
            rows.append(("half", self.halves, "width"))
        return tuple(
            Decision(name=name, options=options, group=group, ordered=name != "rhythm")
            for name, options, group in rows
        )

    def architecture(self, picks: Picks) -> DilatedResidualArchitecture:
        """Decode picks."""
        check_picks(self.decisions, picks)
        values = {decision.name: decision.options[picks[decision.name]] for decision in self.decisions}
        blocks, rhythm = int(str(values.pop("blocks"))), str(values.pop("rhythm"))
        values = {"half": self.halves[0], **values}
        return DilatedResidualArchitecture(**values, dilations=_repeated(rhythm, blocks))  # type: ignore[arg-type]

    def picks(self, arch: DilatedResidualArchitecture) -> Picks:
        """Encode an architecture."""
        if arch.half not in self.halves:
            raise InvalidArchitecture(f"half: {arch.half}; this space allows {list(self.halves)}.")
        blocks = len(arch.dilations)
        rhythm = next((text for text in self.rhythms if _repeated(text, blocks) == arch.dilations), None)
        return picks_of(self.decisions, {**vars(arch), "blocks": blocks, "rhythm": rhythm or arch.dilations})

    def plan(self, arch: DilatedResidualArchitecture, image: Shape, classes: int) -> Plan:
        """Write the layers: stem, blocks at 1/4 and 1/8, a decoder at 1/4 and perhaps 1/2, and a head at 1/8."""
        build = PlanBuilder(image)
        source = build.add("stem", CONV, IMAGE, channels=arch.stem, stride=2)
        source = build.add("quarter", CONV, source, channels=arch.quarter, stride=2)
        for block in range(arch.quarter_blocks):
            source = _residual(build, f"quarter_block{block}", source)
        detail = source
        source = build.add("eighth", CONV, source, channels=arch.eighth, stride=2)
        for block, dilation in enumerate(arch.dilations):
            source = _residual(build, f"eighth_block{block}", source, dilation=dilation)
        narrow = build.add("context_narrow", BARE_POINT, source, channels=arch.decoder)
        detail = build.add("detail_narrow", BARE_POINT, detail, channels=arch.decoder)
        joined = _activated(build, build.add("joined", Sum(), detail, narrow))
        refined = build.add("refined", CONV, joined)
        if arch.half:
            fine = build.add("half_detail", BARE_POINT, "stem", channels=arch.half)
            coarse = build.add("half_context", BARE_POINT, refined, channels=arch.half)
            joined = _activated(build, build.add("half_joined", Sum(), fine, coarse))
            refined = build.add("half_refined", CONV, joined)
        return build.plan(
            outputs={
                "main": build.add("head", SCORES, refined, channels=classes),
                "aux1": build.add("aux_head", SCORES, source, channels=classes),
            },
            align_corners=False,
        )

    def calls(self, image: Shape, classes: int) -> Iterator[OpCall]:
        """Yield every call of any plan: they depend on two neighbouring widths and on single dilations alone."""
        dilations = tuple(sorted({value for text in self.rhythms for value in _rhythm(text)}))
        widths = {
            "stem": self.stems,
            "quarter": self.quarters,
            "eighth": self.eighths,
            "decoder": self.decoders,
            "half": self.halves,
        }
        first = {name: options[0] for name, options in widths.items()}
        seen: set[OpCall] = set()
        for left, right in (
            ("stem", "quarter"),
            ("quarter", "eighth"),
            ("quarter", "decoder"),
            ("eighth", "decoder"),
            ("stem", "half"),
            ("decoder", "half"),
        ):
            for pair in product(widths[left], widths[right]):
                chosen = {**first, left: pair[0], right: pair[1]}
                arch = DilatedResidualArchitecture(**chosen, quarter_blocks=1, dilations=dilations)
                for call in self.plan(arch, image, classes).calls:
                    if call not in seen:
                        seen.add(call)
                        yield call


def _residual(build: PlanBuilder, name: str, source: str, *, dilation: int = 1) -> str:
    """Two 3x3 convolutions, the second dilated; the input is added to their result."""
    inner = build.add(f"{name}_conv1", CONV, source)
    body = build.add(f"{name}_conv2", Conv(dilation=dilation, activation="none"), inner)
    return _activated(build, build.add(name, Sum(), body, source))


def _activated(build: PlanBuilder, source: str) -> str:
    return build.add(f"{source}_relu", Activate(), source)


def _rhythm(text: str) -> tuple[int, ...]:
    return tuple(int(value) for value in text.split("-"))


def _repeated(text: str, blocks: int) -> tuple[int, ...]:
    return tuple(islice(cycle(_rhythm(text)), blocks))

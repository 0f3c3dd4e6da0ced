"""Small studies of operator latency that the papers argue with, to be rerun on any target.

Each study is plain data: labelled operator calls and what was published for them. How they are timed is the timer's
business (docs/decisions/0004), so a study uses the very method that fills latency tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Literal

from segtailor.core.plan import OpCall, Operator, Shape
from segtailor.core.registry import Registry
from segtailor.core.target import Target
from segtailor.costs.timers import timer_for
from segtailor.ops import Conv, Separable
from segtailor.ops.convolutions import ZoomedConv
from segtailor.targets.runtime import runtime_for


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call of a study: its series and place on the axis, and the published milliseconds where there are any."""

    series: str
    label: str
    call: OpCall
    published_ms: float | None = None
    facts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Study:
    """A table or figure of a paper as calls to time."""

    title: str
    source: str
    axis: str
    kind: Literal["bars", "lines"]
    cases: tuple[Case, ...]


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A case with what it takes here."""

    series: str
    label: str
    ms: float
    macs: int
    published_ms: float | None = None

    @property
    def gmacs_per_ms(self) -> float:
        """Arithmetic done per millisecond, the papers' "FLOPs-efficiency" in multiply-accumulates."""
        return self.macs / 1e9 / self.ms if self.ms else 0.0


STUDIES: Registry[Study] = Registry("study")


def run_study(study: Study, target: Target, *, seconds: float = 0.3) -> list[Timed]:
    """Time every case on the target, all in turns."""
    runtime_for(target)
    timer = timer_for(target)
    rows: list[Timed] = []
    for first in range(0, len(study.cases), timer.chunk):
        chunk = study.cases[first : first + timer.chunk]
        entries = timer.time([case.call for case in chunk], seconds=seconds)
        rows += [
            Timed(
                series=case.series,
                label=case.label,
                ms=entry.us / 1000,
                macs=case.call.macs(),
                published_ms=case.published_ms,
            )
            for case, entry in zip(chunk, entries, strict=True)
        ]
    return rows


def spans(rows: Sequence[Timed], cases: Sequence[Case]) -> dict[str, float]:
    """Return, per granularity, the mean over all other choices of slowest minus fastest, in milliseconds per layer.

    The question of FasterSeg's Table 2, asked of single layers: how much latency hangs on one kind of choice.
    """
    found = {}
    for granularity in cases[0].facts:
        groups: dict[tuple[str, ...], list[float]] = {}
        for row, case in zip(rows, cases, strict=True):
            others = tuple(value for name, value in case.facts.items() if name != granularity)
            groups.setdefault(others, []).append(row.ms)
        found[granularity] = mean(max(times) - min(times) for times in groups.values())
    return found


def _case(series: str, label: str, op: Operator, shape: Shape, published_ms: float | None = None) -> Case:
    call = OpCall(op=op, inputs=(shape,), channels=shape.channels)
    return Case(series=series, label=label, call=call, published_ms=published_ms)


_MAP = Shape(256, 32, 64)
STUDIES.add(
    "fasterseg-table-1",
    Study(
        title="One 3x3 layer on 256x32x64",
        source="FasterSeg, Table 1 (1080 Ti, TensorRT)",
        axis="layer",
        kind="bars",
        cases=(
            _case("latency", "conv", Conv(), _MAP, 0.15),
            _case("latency", "conv group 2", Conv(groups=2), _MAP, 0.13),
            _case("latency", "conv dilation 2", Conv(dilation=2), _MAP, 0.25),
            _case("latency", "zoomed conv", ZoomedConv(), _MAP, 0.09),
        ),
    ),
)

_OPERATORS: dict[str, Operator] = {
    "conv": Conv(),
    "zoomed conv": ZoomedConv(),
    "conv x2": Conv(repeats=2),
    "zoomed conv x2": ZoomedConv(repeats=2),
}
STUDIES.add(
    "fasterseg-table-2",
    Study(
        title="What latency hangs on: operator, rate, width of a layer at 1024x2048",
        source="FasterSeg, Table 2 (there for a whole supernet: operator 10.42, rate 0.01, width 5.54 ms)",
        axis="operator, rate 1/s, ratio",
        kind="bars",
        cases=tuple(
            Case(
                series=name,
                label=f"1/{rate} x{ratio}",
                call=OpCall(
                    op=op, inputs=(Shape(rate * ratio, 1024 // rate, 2048 // rate),), channels=rate * ratio
                ),
                facts={"operator": name, "rate": str(rate), "width": str(ratio)},
            )
            for name, op in _OPERATORS.items()
            for rate in (8, 16, 32)
            for ratio in (4, 8, 12)
        ),
    ),
)

_THIN = Shape(32, 128, 128)
STUDIES.add(
    "lpsnet-figure-4",
    Study(
        title="Standard against separable convolution on 32x128x128",
        source="LPS-Net, Figure 4 (1070 Ti, TensorRT: 3987 against 357 MFLOPs per ms)",
        axis="layer",
        kind="bars",
        cases=(
            _case("latency", "3x3 conv", Conv(), _THIN),
            _case("latency", "3x3 separable", Separable(), _THIN),
        ),
    ),
)
for _name, _widths in (("lpsnet-figure-5a", range(1, 18)), ("lpsnet-figure-5b", range(8, 73, 8))):
    STUDIES.add(
        _name,
        Study(
            title=f"3x3 convolution on 128x128 maps, {_widths[0]} to {_widths[-1]} channels",
            source="LPS-Net, Figure 5 (1070 Ti, TensorRT)",
            axis="channels",
            kind="lines",
            cases=tuple(_case("latency", str(width), Conv(), Shape(width, 128, 128)) for width in _widths),
        ),
    )

"""Time the operators of tables and figures in papers on any target.

    python -m benchmarks.operator_studies fasterseg-table-1 --target "cpu/onnxruntime/fp32?threads=1" --out DIR
    python -m benchmarks.operator_studies --help                                              # names all studies

A study is a list of operator calls with the published milliseconds, if any. Calls are timed by the same method as
entries of latency tables (docs/decisions/0004). With `--out` the rows are written as `DIR/NAME.json` and a chart as
`DIR/NAME.svg`; several targets get a folder each.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any, Literal

from segtailor.core.atomic import write_json, write_text
from segtailor.core.errors import UserError, unknown
from segtailor.core.ownership import has_fields, is_drawing, marked_svg, refuse_overwrite
from segtailor.core.plan import OpCall, Operator, Shape
from segtailor.core.target import Target, parse_target
from segtailor.costs.timers import timer_for
from segtailor.ops import Conv, Separable, ZoomedConv
from segtailor.report.charts import Value, chart
from segtailor.targets.machine import machine
from segtailor.targets.runtime import runtime_for
from segtailor.verbs.output import Printer, emit

SECONDS = 0.3  # for each operator
DEFAULT_TARGET = "cpu/onnxruntime/fp32"
is_study_file = has_fields("study", "machine", "rows")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call of a study, its series and its label on the axis; `facts` names the choices that it stands for."""

    series: str
    label: str
    call: OpCall
    published_ms: float | None = None
    facts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class OperatorStudy:
    """A table or figure of a paper as calls to time."""

    title: str
    source: str
    axis: str
    kind: Literal["bars", "lines"]
    cases: tuple[Case, ...]


@dataclass(frozen=True, kw_only=True)
class TimedCase:
    """A case with its measured latency."""

    series: str
    label: str
    ms: float
    macs: int
    published_ms: float | None = None

    @property
    def gmacs_per_ms(self) -> float:
        """Arithmetic per millisecond: the papers' "FLOPs-efficiency", in multiply-accumulates."""
        return self.macs / 1e9 / self.ms if self.ms else 0.0


def _cases(shape: Shape, operators: Iterable[tuple[str, Operator, float | None]]) -> tuple[Case, ...]:
    """Return one case for each operator on maps of one shape."""
    return tuple(
        Case(
            series="latency",
            label=label,
            call=OpCall(op=op, inputs=(shape,), channels=shape.channels),
            published_ms=published_ms,
        )
        for label, op, published_ms in operators
    )


def _choices_of_a_layer() -> tuple[Case, ...]:
    """Return the candidates of FasterSeg at 1024x2048: operator, rate and width ratio."""
    operators: dict[str, Operator] = {
        "conv": Conv(),
        "zoomed conv": ZoomedConv(),
        "conv x2": Conv(repeats=2),
        "zoomed conv x2": ZoomedConv(repeats=2),
    }
    return tuple(
        Case(
            series=name,
            label=f"1/{rate} x{ratio}",
            call=OpCall(
                op=op, inputs=(Shape(rate * ratio, 1024 // rate, 2048 // rate),), channels=rate * ratio
            ),
            facts={"operator": name, "rate": str(rate), "width": str(ratio)},
        )
        for name, op in operators.items()
        for rate in (8, 16, 32)
        for ratio in (4, 8, 12)
    )


def _widths(widths: range) -> OperatorStudy:
    """Return convolutions of several widths."""
    return OperatorStudy(
        title=f"3x3 convolution on 128x128 maps, {widths[0]} to {widths[-1]} channels",
        source="LPS-Net, Figure 5 (1070 Ti, TensorRT)",
        axis="channels",
        kind="lines",
        cases=tuple(
            case for width in widths for case in _cases(Shape(width, 128, 128), [(str(width), Conv(), None)])
        ),
    )


STUDIES = {
    "fasterseg-table-1": OperatorStudy(
        title="One 3x3 layer on 256x32x64",
        source="FasterSeg, Table 1 (1080 Ti, TensorRT)",
        axis="layer",
        kind="bars",
        cases=_cases(
            Shape(256, 32, 64),
            [
                ("conv", Conv(), 0.15),
                ("conv group 2", Conv(groups=2), 0.13),
                ("conv dilation 2", Conv(dilation=2), 0.25),
                ("zoomed conv", ZoomedConv(), 0.09),
            ],
        ),
    ),
    "fasterseg-table-2": OperatorStudy(
        title="What latency hangs on: operator, rate, width of a layer at 1024x2048",
        source="FasterSeg, Table 2 (there for a whole supernet: operator 10.42, rate 0.01, width 5.54 ms)",
        axis="operator, rate 1/s, ratio",
        kind="bars",
        cases=_choices_of_a_layer(),
    ),
    "lpsnet-figure-4": OperatorStudy(
        title="Standard against separable convolution on 32x128x128",
        source="LPS-Net, Figure 4 (1070 Ti, TensorRT: 3987 against 357 MFLOPs per ms)",
        axis="layer",
        kind="bars",
        cases=_cases(Shape(32, 128, 128), [("3x3 conv", Conv(), None), ("3x3 separable", Separable(), None)]),
    ),
    "lpsnet-figure-5a": _widths(range(1, 18)),
    "lpsnet-figure-5b": _widths(range(8, 73, 8)),
}


def run_study(
    name: str,
    target: str | Target,
    *,
    out: str | Path | None = None,
    seconds: float = SECONDS,
    force: bool = False,
) -> dict[str, Any]:
    """Time the operators of a study on a target; with `out`, write `NAME.json` and `NAME.svg` there.

    Files with these names that are not of a study are replaced only with `force`.
    """
    if name not in STUDIES:
        raise unknown("study", name, STUDIES)
    study = STUDIES[name]
    if out is not None:
        files = [(Path(out) / f"{name}.json", is_study_file), (Path(out) / f"{name}.svg", is_drawing)]
        refuse_overwrite(files, force=force)
    parsed = parse_target(target) if isinstance(target, str) else target
    rows = time_cases(study.cases, parsed, seconds=seconds)
    document = {
        "study": name,
        "title": study.title,
        "source": study.source,
        "target": str(parsed),
        "machine": machine().fingerprint,
        "rows": [
            {
                "series": row.series,
                "label": row.label,
                "ms": row.ms,
                "macs": row.macs,
                "gmacs_per_ms": row.gmacs_per_ms,
                "published_ms": row.published_ms,
            }
            for row in rows
        ],
        "spans_ms": spans(rows, study.cases) if study.cases[0].facts else {},
    }
    if out is not None:
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / f"{name}.json", document, what="figures of the study")
        drawing = marked_svg(_drawing(study, rows, parsed))
        write_text(folder / f"{name}.svg", drawing, what="chart of the study")
    return document


def time_cases(cases: Sequence[Case], target: Target, *, seconds: float = SECONDS) -> list[TimedCase]:
    """Time all cases on the target, interleaved."""
    runtime_for(target)
    timer = timer_for(target)
    rows: list[TimedCase] = []
    for first in range(0, len(cases), timer.chunk):
        chunk = cases[first : first + timer.chunk]
        entries = timer.time([case.call for case in chunk], seconds=seconds)
        rows += [
            TimedCase(
                series=case.series,
                label=case.label,
                ms=entry.us / 1000,
                macs=case.call.macs(),
                published_ms=case.published_ms,
            )
            for case, entry in zip(chunk, entries, strict=True)
        ]
    return rows


def spans(rows: Sequence[TimedCase], cases: Sequence[Case]) -> dict[str, float]:
    """Return, for each kind of choice, slowest minus fastest in milliseconds per layer, averaged over the others.

    This is the question of FasterSeg's Table 2, for single layers: how much latency depends on one kind of choice.
    """
    result = {}
    for kind in cases[0].facts:
        groups: dict[tuple[str, ...], list[float]] = {}
        for row, case in zip(rows, cases, strict=True):
            others = tuple(value for name, value in case.facts.items() if name != kind)
            groups.setdefault(others, []).append(row.ms)
        result[kind] = mean(max(times) - min(times) for times in groups.values())
    return result


def _drawing(study: OperatorStudy, rows: Sequence[TimedCase], target: Target) -> str:
    values = [
        Value(row.series, row.label, row.ms, f"{row.series} {row.label}: {row.ms:.4f} ms") for row in rows
    ]
    subtitle = f"{target}; after {study.source.partition(' (')[0]}"
    return chart(values, title=study.title, subtitle=subtitle, unit="ms", lines=study.kind == "lines")


def _print(printer: Printer, documents: Sequence[dict[str, Any]]) -> None:
    for document in documents:
        rows = [
            [
                row["series"],
                row["label"],
                f"{row['ms']:.4f}",
                f"{row['macs'] / 1e6:.1f}",
                f"{row['gmacs_per_ms']:.3f}",
                "-" if row["published_ms"] is None else f"{row['published_ms']:.2f}",
            ]
            for row in document["rows"]
        ]
        title = f"{document['title']} on {document['target']}"
        printer.table(title, ["series", "case", ">ms", ">MMACs", ">GMACs/ms", ">published ms"], rows)
        for kind, span in document["spans_ms"].items():
            printer.say(f"span by {kind}: {span:.4f} ms per layer")
        printer.say(document["source"])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=list(STUDIES))
    parser.add_argument("--target", action="append", help=f"may be repeated; default: {DEFAULT_TARGET}")
    parser.add_argument("--out", type=Path, help="folder of figures and chart")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each operator")
    parser.add_argument("--force", action="store_true", help="replace files that are not of a study, too")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(argv)
    targets = options.target or [DEFAULT_TARGET]
    documents = []
    try:
        for target in targets:
            folder = options.out
            if folder is not None and len(targets) > 1:
                folder /= target.replace("/", "-").replace("?", "-")
            documents.append(
                run_study(options.study, target, out=folder, seconds=options.seconds, force=options.force)
            )
    except UserError as problem:
        sys.exit(f"error: {problem}")
    emit(
        documents[0] if len(documents) == 1 else documents,
        lambda printer: _print(printer, documents),
        json=options.json,
    )


if __name__ == "__main__":
    main()

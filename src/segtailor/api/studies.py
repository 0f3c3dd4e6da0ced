"""Rerun a paper's study of operator latency on a target: the function behind `segtailor bench --study`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from segtailor.core.atomic import write_json, write_text
from segtailor.core.ownership import holds, is_drawing, marked_svg, spare
from segtailor.core.target import Target, parse_target
from segtailor.costs.studies import STUDIES, Study, Timed, run_study, spans
from segtailor.report.charts import Value, chart
from segtailor.targets.machine import machine

is_study = holds("study", "machine", "rows")


def study(
    name: str,
    target: str | Target,
    *,
    out: str | Path | None = None,
    seconds: float = 0.3,
    force: bool = False,
) -> dict[str, Any]:
    """Time the study's operators on the target; with `out`, write `NAME.json` and `NAME.svg` there.

    Files under these names that are not ours are replaced only by `force`.
    """
    chosen = STUDIES.get(name)
    if out is not None:
        spare([(Path(out) / f"{name}.json", is_study), (Path(out) / f"{name}.svg", is_drawing)], force=force)
    place = parse_target(target) if isinstance(target, str) else target
    rows = run_study(chosen, place, seconds=seconds)
    document = {
        "study": name,
        "title": chosen.title,
        "source": chosen.source,
        "target": str(place),
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
        "spans_ms": spans(rows, chosen.cases) if chosen.cases[0].facts else {},
    }
    if out is not None:
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / f"{name}.json", document, what="figures of the study")
        drawing = marked_svg(_drawing(chosen, rows, place))
        write_text(folder / f"{name}.svg", drawing, what="chart of the study")
    return document


def _drawing(chosen: Study, rows: list[Timed], place: Target) -> str:
    values = [
        Value(row.series, row.label, row.ms, f"{row.series} {row.label}: {row.ms:.4f} ms") for row in rows
    ]
    subtitle = f"{place}; after {chosen.source.partition(' (')[0]}"
    return chart(values, title=chosen.title, subtitle=subtitle, unit="ms", lines=chosen.kind == "lines")

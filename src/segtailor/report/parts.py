"""Parts of a report that a run keeps, because they need data or a network: layer times, findings, pictures.

`report/parts.json` in a run directory holds fields of `Parts` by name. They replace what the journal tells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

from segtailor.core.atomic import write_json
from segtailor.core.codec import Json, from_json, read_json, to_json
from segtailor.core.errors import RunProblem
from segtailor.core.plan import OpCall, Plan
from segtailor.core.registry import OPERATORS
from segtailor.report.document import (
    DataFinding,
    DataFindings,
    Fact,
    LayerTime,
    LayerTimes,
    Parts,
    Report,
    Split,
)
from segtailor.report.fields import number, rows, table, text, whole
from segtailor.runs import Layout
from segtailor.runs.layout import FINGERPRINT, FRONTS

PARTS_FILE = "parts.json"
MAX_PARTS_BYTES = 16 * 2**20  # there are pictures in it
SEVERITIES: tuple[Literal["error", "warning", "info"], ...] = ("error", "warning", "info")


def parts_file(folder: Path) -> Path:
    """Return where the parts of a run are kept."""
    return Layout(folder).report / PARTS_FILE


def save_parts(folder: Path, parts: Parts) -> Path:
    """Write the parts that are not empty and return the file; title and drawings of a whole report are left out."""
    only_parts = Parts(**{field.name: getattr(parts, field.name) for field in fields(Parts)})
    written: dict[str, Json] = to_json(only_parts)
    empty = to_json(Parts())
    file = parts_file(folder)
    file.parent.mkdir(parents=True, exist_ok=True)
    filled = {name: value for name, value in written.items() if value != empty[name]}
    write_json(file, filled, what="parts of the report")
    return file


def kept_parts(folder: Path) -> Parts:
    """Return the parts kept in a folder, empty ones where there is no file; a damaged file raises."""
    file = parts_file(folder)
    if not file.exists():
        return Parts()
    content = read_json(file, what="parts of the report", error=RunProblem, limit=MAX_PARTS_BYTES)
    return from_json(Parts, content, what=f"parts of the report {file}", error=RunProblem)


def with_parts(report: Report, folder: Path) -> Report:
    """Return the report with the parts kept in the folder; lines about what is missing are added to its own."""
    kept, empty = kept_parts(folder), Parts()
    filled = {
        field.name: getattr(kept, field.name)
        for field in fields(Parts)
        if getattr(kept, field.name) != getattr(empty, field.name) and field.name != "missing"
    }
    return replace(report, **filled, missing=(*report.missing, *kept.missing))


def layer_times(
    plan: Plan,
    *,
    price: Callable[[OpCall], float] | None = None,
    measured: Mapping[str, float] | None = None,
    measured_ms: float | None = None,
    note: str = "",
) -> LayerTimes:
    """Return the layers that inference runs: `price` estimates milliseconds, `measured` holds them by node.

    The estimate of the whole is the sum of the prices; `measured_ms` is the measured whole network.
    """
    deployed, measured_by_node = plan.deployed(), measured or {}
    prices = {node.name: price(deployed.call(node.name)) for node in deployed.nodes} if price else {}
    layers = tuple(
        LayerTime(
            name=node.name,
            operator=OPERATORS.name_of(type(node.op)).replace("_", " "),
            estimated_ms=prices.get(node.name),
            measured_ms=measured_by_node.get(node.name),
        )
        for node in deployed.nodes
    )
    estimated = sum(prices.values()) if prices else None
    return LayerTimes(layers=layers, estimated_ms=estimated, measured_ms=measured_ms, note=note)


def findings_of(name: str, diagnosis: Mapping[str, Any]) -> DataFindings:
    """Return findings, worst first, and splits of the dataset `name`.

    `diagnosis` is `Diagnosis.document()` of the dataset doctor, or the JSON that `segtailor data check` prints.
    """
    data = dict(diagnosis)
    findings = [
        DataFinding(
            severity=severity,
            kind=text(row, "kind"),
            message=text(row, "message"),
            fix=text(row, "fix"),
            file=text(row, "file"),
        )
        for severity in SEVERITIES
        for row in rows(data, "findings")
        if row.get("severity") == severity
    ]
    splits = [
        Split(name=split, images=whole(facts, "images") or 0, shares=_shares(table(facts, "shares")))
        for split, facts in table(data, "splits").items()
    ]
    return DataFindings(name=name, findings=tuple(findings), splits=tuple(splits))


def _shares(by_class: dict[str, Any]) -> tuple[tuple[str, float], ...]:
    shares = [(name, number(by_class, name)) for name in by_class]
    return tuple((name, share) for name, share in shares if share is not None)


def start_fact(start: object) -> Fact:
    """Return where the weights of a network came from, with their licence (`start` of a result or bundle)."""
    if not isinstance(start, dict) or not start.get("carried"):
        return Fact(name="started from", value="random weights")
    name = str(start.get("name"))
    folder = Path(name)
    if folder.parent.name == FRONTS and FINGERPRINT.fullmatch(folder.name):
        name = "weights of the search"
    return Fact(name="started from", value=f"{name} ({start.get('licence')})")


def calibration_fact(numbers: object) -> tuple[Fact, ...]:
    """Return how far confidence and accuracy are apart, if a bundle (its `numbers`) was calibrated."""
    before, after = (number(numbers, "calibration", name) for name in ("ece_before", "ece_after"))
    if before is None or after is None:
        return ()
    return (Fact(name="calibration error", value=f"{100 * after:.1f} % (was {100 * before:.1f} %)"),)

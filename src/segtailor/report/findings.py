"""What the dataset doctor found, from the JSON that `segtailor data check` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from segtailor.report.document import DataFinding, DataFindings, Split
from segtailor.report.fields import number, rows, table, text, whole

SEVERITIES: tuple[Literal["error", "warning", "info"], ...] = ("error", "warning", "info")


def findings_of(name: str, document: Mapping[str, Any]) -> DataFindings:
    """Return findings, worst first, and splits of the dataset `name`, from `Diagnosis.document()` or a file of it."""
    data = dict(document)
    found = [
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
    return DataFindings(name=name, findings=tuple(found), splits=tuple(splits))


def _shares(found: dict[str, Any]) -> tuple[tuple[str, float], ...]:
    known = [(name, number(found, name)) for name in found]
    return tuple((name, share) for name, share in known if share is not None)

"""What a check reports: a finding with severity, kind, file, message and fix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

Severity: TypeAlias = Literal["error", "warning", "info"]

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
LISTED = 20  # findings of one kind and severity; the rest are counted


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing worth knowing about a dataset. Where no single file is to blame, `file` is the dataset's
    folder or list, and empty if it has none."""

    severity: Severity
    kind: str
    message: str
    fix: str
    file: str = ""


def arranged(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort by severity, keep the first few of each kind and say how many more there are."""
    groups: dict[tuple[Severity, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.severity, finding.kind), []).append(finding)
    ordered = sorted(groups.items(), key=lambda item: SEVERITIES.index(item[0][0]))
    return tuple(finding for _, group in ordered for finding in _capped(group))


def _capped(group: Sequence[Finding]) -> Iterator[Finding]:
    yield from group[:LISTED]
    rest = len(group) - LISTED
    if rest > 0:
        more = f"and {rest} more of the same kind, up to {group[-1].file or 'the last one'}"
        yield replace(group[LISTED], message=more)

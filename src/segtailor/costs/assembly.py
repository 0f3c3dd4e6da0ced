"""From what was measured, here or on a board, to a device pack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from segtailor.core.codec import to_json
from segtailor.core.plan import OpCall, Shape
from segtailor.core.space import SearchSpace, family_name, fingerprint_of
from segtailor.costs.estimate import estimated
from segtailor.costs.keys import key_of
from segtailor.costs.pack import Entry, Pack
from segtailor.costs.trust import MeasuredNetwork, corrected, judged


@dataclass(frozen=True, kw_only=True)
class WholeNetworkTime:
    """The time of one network, by its picks: undisturbed, and the median."""

    picks: Mapping[str, int]
    low_ms: float
    median_ms: float


@dataclass(frozen=True, kw_only=True)
class CalibrationSubject:
    """What was measured: a space at an image size with a number of classes, on a target."""

    space: SearchSpace
    image: tuple[int, int]
    classes: int
    target: str

    @property
    def shape(self) -> Shape:
        """The shape of the image."""
        return Shape(3, *self.image)

    def header(self) -> dict[str, Any]:
        """Return the subject as plain data."""
        return {
            "space": family_name(self.space),
            "settings": to_json(self.space),
            "image": list(self.image),
            "classes": self.classes,
            "target": self.target,
        }


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything measured: operators, networks for the correction, networks for the trust report."""

    measured: Mapping[OpCall, Entry] = field(default_factory=dict)
    fit: tuple[WholeNetworkTime, ...] = ()
    trust: tuple[WholeNetworkTime, ...] = ()


def assemble(
    subject: CalibrationSubject,
    evidence: Evidence,
    calls: Sequence[OpCall],
    *,
    machine: Mapping[str, Any],
    conditions: Mapping[str, Any],
) -> Pack:
    """Fill what is missing of `calls` by estimates, fit the correction, judge."""
    missing = [call for call in calls if call not in evidence.measured]
    guessed = estimated(evidence.measured, missing)
    entries = {**evidence.measured, **guessed}
    facts = {
        "measured": len(evidence.measured),
        "estimated": len(guessed),
        "missing": len(missing) - len(guessed),
    }
    draft = Pack(
        space=family_name(subject.space),
        settings=to_json(subject.space),
        image=subject.image,
        classes=subject.classes,
        target=subject.target,
        machine=machine,
        entries={key_of(call): entry for call, entry in entries.items()},
        conditions={**facts, **conditions},
    )
    return judged(corrected(draft, _seen(subject, evidence.fit)), _seen(subject, evidence.trust))


def _seen(subject: CalibrationSubject, networks: Sequence[WholeNetworkTime]) -> list[MeasuredNetwork]:
    rows = []
    for whole in networks:
        arch = subject.space.architecture(whole.picks)
        plan = subject.space.plan(arch, subject.shape, subject.classes)
        rows.append(MeasuredNetwork(fingerprint_of(arch), plan, whole.low_ms, whole.median_ms))
    return rows

"""Make a device pack from measurements, taken here or on a board."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from segtailor.core.codec import to_json
from segtailor.core.plan import OpCall, Shape
from segtailor.core.space import SearchSpace, family_name, fingerprint_of
from segtailor.costs.entries import estimate_entries
from segtailor.costs.keys import key_of
from segtailor.costs.pack import Entry, Pack
from segtailor.costs.trust import MeasuredNetwork, with_correction, with_trust


@dataclass(frozen=True, kw_only=True)
class WholeNetworkTime:
    """Milliseconds of one whole network, given by its picks: the fastest run (`low_ms`) and the median."""

    picks: Mapping[str, int]
    low_ms: float
    median_ms: float


@dataclass(frozen=True, kw_only=True)
class CalibrationSubject:
    """What is calibrated: a space at an image size with a number of classes, on a target."""

    space: SearchSpace
    image: tuple[int, int]
    classes: int
    target: str
    channels: int = 3

    @property
    def shape(self) -> Shape:
        """The shape of the image."""
        return Shape(self.channels, *self.image)

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
    """All measurements: operators, whole networks for the correction, whole networks for the trust report."""

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
    """Estimate the calls that were not measured, fit the correction, and add the trust report."""
    missing = [call for call in calls if call not in evidence.measured]
    estimates = estimate_entries(evidence.measured, missing)
    entries = {**evidence.measured, **estimates}
    facts = {
        "measured": len(evidence.measured),
        "estimated": len(estimates),
        "missing": len(missing) - len(estimates),
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
    pack = with_correction(draft, _measured_networks(subject, evidence.fit))
    return with_trust(pack, _measured_networks(subject, evidence.trust))


def _measured_networks(
    subject: CalibrationSubject, networks: Sequence[WholeNetworkTime]
) -> list[MeasuredNetwork]:
    rows = []
    for whole in networks:
        arch = subject.space.architecture(whole.picks)
        plan = subject.space.plan(arch, subject.shape, subject.classes)
        rows.append(MeasuredNetwork(fingerprint_of(arch), plan, whole.low_ms, whole.median_ms))
    return rows

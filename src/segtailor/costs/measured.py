"""Latency by measuring each network whole: slow, exact, not additive."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from segtailor.core.codec import fingerprint
from segtailor.core.plan import Plan
from segtailor.core.target import Target
from segtailor.costs.keys import key_of
from segtailor.costs.whole import time_networks
from segtailor.targets.timing import TimingSettings


@dataclass(frozen=True, kw_only=True)
class MeasuredLatency:
    """Median milliseconds of the deployed network on a target of this machine.

    A network is measured once: asked again, it has the same cost, so that a search does not follow noise.
    """

    target: Target
    settings: TimingSettings = field(default_factory=TimingSettings)
    known: dict[str, float] = field(default_factory=dict, compare=False, repr=False)

    unit: ClassVar[str] = "ms"

    def of(self, plan: Plan) -> float:
        """Measure what inference runs, or remember it."""
        mark = _identity(plan.deployed())
        if mark not in self.known:
            ((_, median_ms),) = time_networks([plan], self.target, settings=self.settings)
            self.known[mark] = median_ms
        return self.known[mark]


def _identity(plan: Plan) -> str:
    """Fingerprint layers, sizes and links."""
    return fingerprint(
        [[node.name, list(node.inputs), key_of(plan.call(node.name))] for node in plan.nodes]
        + [sorted(plan.outputs.items())]
    )

"""Whole networks timed on a target: as a cost, which is slow, exact and not additive, and for checking table prices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar

from segtailor.core.codec import fingerprint
from segtailor.core.plan import Plan
from segtailor.core.space import Architecture, SearchSpace, fingerprint_of
from segtailor.core.target import Target
from segtailor.core.variation import sample
from segtailor.costs.keys import key_of
from segtailor.costs.timers import MS_PER_SECOND, fastest_seconds
from segtailor.deploy.fold import inference_form
from segtailor.nets.network import Network, initialise
from segtailor.targets.runtime import compile_network
from segtailor.targets.timing import TimingSettings, stopwatch, time_all

MAX_REPEATED_DRAWS = 100  # in a row: then a small space has no more architectures


@dataclass(frozen=True, kw_only=True)
class MeasuredLatency:
    """Median milliseconds of the deployed network on a target of this machine.

    A network is measured once and its cost is remembered, so that a search does not follow noise.
    """

    target: Target
    settings: TimingSettings = field(default_factory=TimingSettings)
    known: dict[str, float] = field(default_factory=dict, compare=False, repr=False)

    unit: ClassVar[str] = "ms"

    def of(self, plan: Plan) -> float:
        """Measure the deployed plan, or return the remembered time."""
        key = _plan_fingerprint(plan.deployed())
        if key not in self.known:
            ((_, median_ms),) = time_networks([plan], self.target, settings=self.settings)
            self.known[key] = median_ms
        return self.known[key]


def time_networks(
    plans: Sequence[Plan], target: Target, *, settings: TimingSettings | None = None
) -> list[tuple[float, float]]:
    """Time the deployed form of each plan, with new weights, in turns; return fastest and median milliseconds."""
    compiled = []
    try:
        for plan in plans:
            network = Network(plan.deployed())
            initialise(network, 0)
            compiled.append(compile_network(inference_form(network.eval()), target, (plan.image,)))
        taken = time_all([stopwatch(one, target.device) for one in compiled], settings)
    finally:
        for one in compiled:
            one.close()
    return [(MS_PER_SECOND * fastest_seconds(samples), MS_PER_SECOND * samples.median) for samples in taken]


def distinct_architectures(space: SearchSpace, *, seed: int) -> Iterator[Architecture]:
    """Yield random architectures, each one once, until the space seems to have no more."""
    rng, repeats = Random(seed), 0
    seen: set[str] = set()
    while repeats < MAX_REPEATED_DRAWS:
        arch = sample(space, rng)
        key = fingerprint_of(arch)
        if key in seen:
            repeats += 1
            continue
        repeats = 0
        seen.add(key)
        yield arch


def _plan_fingerprint(plan: Plan) -> str:
    """Return the fingerprint of layers, sizes and connections."""
    return fingerprint(
        [[node.name, list(node.inputs), key_of(plan.call(node.name))] for node in plan.nodes]
        + [sorted(plan.outputs.items())]
    )

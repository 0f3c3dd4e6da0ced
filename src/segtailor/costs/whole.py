"""Whole networks timed on a target, several in turns: what table prices are held against."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from segtailor.core.plan import Plan
from segtailor.core.space import Architecture, SearchSpace, fingerprint_of
from segtailor.core.target import Target
from segtailor.core.variation import sample
from segtailor.costs.timers import MS, low
from segtailor.deploy.fold import inference_form
from segtailor.nets.network import Network, initialise
from segtailor.targets.runtime import compile_network
from segtailor.targets.timing import TimingSettings, stopwatch, time_all

TRIES = 100  # draws per wanted network: a tiny space has few different ones


def time_networks(
    plans: Sequence[Plan], target: Target, *, settings: TimingSettings | None = None
) -> list[tuple[float, float]]:
    """Time the deployed form of each plan, with fresh weights, in turns: undisturbed and median milliseconds."""
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
    return [(MS * low(samples), MS * samples.median) for samples in taken]


def different(space: SearchSpace, *, seed: int) -> Iterator[Architecture]:
    """Yield random architectures, each once, until the space seems to have no more."""
    rng, misses = Random(seed), 0
    seen: set[str] = set()
    while misses < TRIES:
        arch = sample(space, rng)
        mark = fingerprint_of(arch)
        if mark in seen:
            misses += 1
            continue
        misses = 0
        seen.add(mark)
        yield arch

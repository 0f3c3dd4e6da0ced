"""Which table entries a space needs, in what order to measure them, and estimates for those not measured."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from random import Random

import numpy as np
from numpy.typing import NDArray

from segtailor.core.plan import OpCall, Plan, Shape
from segtailor.core.registry import OPERATORS
from segtailor.core.space import Architecture, SearchSpace
from segtailor.core.statistics import non_negative_fit
from segtailor.core.variation import sample
from segtailor.costs.analytic import values
from segtailor.costs.keys import split_call
from segtailor.costs.pack import Entry

SAMPLED_ARCHITECTURES = 200  # to count how often each entry is used
FIRST_PER_GROUP = 12  # entries of each group that are measured before everything else
MIN_MEASURED = 3  # measured entries of a group: with fewer, nothing is estimated
NEIGHBOURS = 4  # measured entries that an estimate averages
OTHER_SETTINGS_DISTANCE = (
    10.0  # in doublings of size, so that calls of the same settings are nearly always nearer
)


def rank_calls(
    space: SearchSpace, image: Shape, classes: int, *, examples: Iterable[Architecture] = (), seed: int = 0
) -> list[OpCall]:
    """Return every distinct entry of the space in the order of measuring.

    First the most used entries of each group, since estimates depend on them; then all others, most used first. Use is
    counted in random architectures and in the given examples.
    """
    rng = Random(seed)
    uses: Counter[OpCall] = Counter()
    for arch in examples:
        uses.update(table_calls(space.plan(arch, image, classes)))
    for _ in range(SAMPLED_ARCHITECTURES):
        uses.update(table_calls(space.plan(sample(space, rng), image, classes)))
    everything = dict.fromkeys(part for call in space.calls(image, classes) for part in split_call(call))
    ranked = [*(call for call, _ in uses.most_common()), *(call for call in everything if call not in uses)]
    first = most_used_per_group(ranked)
    chosen = set(first)
    return first + [call for call in ranked if call not in chosen]


def table_calls(plan: Plan) -> list[OpCall]:
    """Return the entries that the price of a plan is made of, repeated as often as they occur."""
    return [part for call in plan.calls for part in split_call(call)]


def most_used_per_group(ranked: Sequence[OpCall], per_group: int = FIRST_PER_GROUP) -> list[OpCall]:
    """Return the most used entries of each group: first one of each group, then the second of each, and so on."""
    counts: Counter[str] = Counter()
    chosen: list[tuple[int, OpCall]] = []
    for call in ranked:
        group = group_of(call)
        if counts[group] < per_group:
            chosen.append((counts[group], call))
        counts[group] += 1
    return [call for _, call in sorted(chosen, key=lambda item: item[0])]


def group_of(call: OpCall) -> str:
    """Return the group of calls that are estimated from one another: operator, number of inputs, stride."""
    return f"{OPERATORS.name_of(type(call.op))} {len(call.inputs)} {call.stride}"


def estimate_entries(measured: Mapping[OpCall, Entry], missing: Sequence[OpCall]) -> dict[OpCall, Entry]:
    """Return entries with 0 runs for the missing calls of every group with enough measured entries."""
    groups: defaultdict[str, list[OpCall]] = defaultdict(list)
    for call in measured:
        groups[group_of(call)].append(call)
    estimates: dict[OpCall, Entry] = {}
    for group, known in groups.items():
        wanted = [call for call in missing if group_of(call) == group]
        if wanted and len(known) >= MIN_MEASURED:
            estimates.update(_estimate_group({call: measured[call] for call in known}, wanted))
    return estimates


def _estimate_group(measured: Mapping[OpCall, Entry], wanted: Sequence[OpCall]) -> dict[OpCall, Entry]:
    """Scale the times of the nearest measured calls by the ratio of their work, and average them."""
    known = list(measured)
    us = np.array([max(measured[call].us, 1.0) for call in known])
    kernels = np.array([measured[call].kernels for call in known])
    work = np.array([_work(call) for call in known])
    rates = non_negative_fit(work / us[:, None], np.ones(len(us)))
    expected = np.maximum(work @ rates, 1e-9)
    sizes = np.array([_log_sizes(call) for call in known])
    estimates = {}
    for call in wanted:
        distances = np.abs(sizes - _log_sizes(call)).sum(axis=1)
        distances += [OTHER_SETTINGS_DISTANCE * (one.op != call.op) for one in known]
        near = np.argsort(distances, kind="stable")[:NEIGHBOURS]
        weights = 1 / (distances[near] + 0.1)
        ratios = float(np.array(_work(call)) @ rates) / expected[near]
        value = float(np.average(us[near] * ratios, weights=weights))
        estimates[call] = Entry(us=round(value, 3), kernels=int(kernels[near[0]]))
    return estimates


def _work(call: OpCall) -> list[float]:
    """Return what a kernel's time is modelled by: arithmetic, memory traffic, and a constant."""
    traffic = sum(map(values, call.inputs)) + values(call.output())
    return [float(call.macs()), float(traffic), 1.0]


def _log_sizes(call: OpCall) -> NDArray[np.float64]:
    """Return the base-2 logarithms of the sizes of a call; distances between calls are measured in these."""
    output = call.output()
    sizes = [call.source.channels, call.source.height, output.channels, output.height, call.macs() + 1]
    logarithms: NDArray[np.float64] = np.log2(np.array(sizes, dtype=float))
    return logarithms

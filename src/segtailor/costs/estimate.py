"""Fill the gaps of a table that ran out of time: entries estimated from measured neighbours of the same operator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from segtailor.core.plan import OpCall
from segtailor.core.registry import OPERATORS
from segtailor.costs.analytic import values
from segtailor.costs.pack import Entry

NEIGHBOURS = 4
OTHER_SETTINGS = 10.0  # in doublings: a call of the same settings is nearly always nearer
FEWEST = 3  # measured entries of an operator kind: with fewer, nothing is estimated


def estimated(measured: Mapping[OpCall, Entry], missing: Sequence[OpCall]) -> dict[OpCall, Entry]:
    """Return entries with 0 runs for the missing calls whose operator kind was measured often enough."""
    kinds: defaultdict[str, list[OpCall]] = defaultdict(list)
    for call in measured:
        kinds[group_of(call)].append(call)
    found: dict[OpCall, Entry] = {}
    for kind, known in kinds.items():
        wanted = [call for call in missing if group_of(call) == kind]
        if wanted and len(known) >= FEWEST:
            found.update(_ofgroup_of({call: measured[call] for call in known}, wanted))
    return found


def _ofgroup_of(measured: Mapping[OpCall, Entry], wanted: Sequence[OpCall]) -> dict[OpCall, Entry]:
    """Scale the nearest measured calls by the ratio of their work, and average them."""
    known = list(measured)
    us = np.array([max(measured[call].us, 1.0) for call in known])
    kernels = np.array([measured[call].kernels for call in known])
    work = np.array([_work(call) for call in known])
    rates = non_negative_fit(work / us[:, None], np.ones(len(us)))
    expected = np.maximum(work @ rates, 1e-9)
    places = np.array([_place(call) for call in known])
    found = {}
    for call in wanted:
        distances = np.abs(places - _place(call)).sum(axis=1)
        distances += [OTHER_SETTINGS * (one.op != call.op) for one in known]
        near = np.argsort(distances, kind="stable")[:NEIGHBOURS]
        weights = 1 / (distances[near] + 0.1)
        ratios = float(np.array(_work(call)) @ rates) / expected[near]
        value = float(np.average(us[near] * ratios, weights=weights))
        found[call] = Entry(us=round(value, 3), kernels=int(kernels[near[0]]))
    return found


def non_negative_fit(features: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least squares with coefficients that are not negative: the most negative column is dropped until none is."""
    columns = list(range(features.shape[1]))
    result = np.zeros(features.shape[1])
    while columns:
        solution = np.linalg.lstsq(features[:, columns], target, rcond=None)[0]
        worst = int(np.argmin(solution))
        if solution[worst] >= 0:
            result[columns] = solution
            break
        del columns[worst]
    return result


def group_of(call: OpCall) -> str:
    """Return the group of calls that are estimated from one another: operator, number of inputs, stride."""
    return f"{OPERATORS.name_of(type(call.op))} {len(call.inputs)} {call.stride}"


def _work(call: OpCall) -> list[float]:
    """Arithmetic, traffic and a constant: what a kernel's time is made of."""
    traffic = sum(map(values, call.inputs)) + values(call.output())
    return [float(call.macs()), float(traffic), 1.0]


def _place(call: OpCall) -> NDArray[np.float64]:
    """Where a call lies among its kind: the logarithms of its sizes."""
    output = call.output()
    sizes = [call.source.channels, call.source.height, output.channels, output.height, call.macs() + 1]
    place: NDArray[np.float64] = np.log2(np.array(sizes, dtype=float))
    return place

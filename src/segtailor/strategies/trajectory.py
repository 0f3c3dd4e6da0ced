"""What a gradient search looks like over time: probabilities, entropies, expected depths, and whether it collapsed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from segtailor.core.codec import Json
from segtailor.core.space import Decision

Probabilities = Mapping[str, Sequence[float]]  # decision name -> probability of each option
LEAST_REACH = 2.0  # of a logit: below it no option gets more than a few times the probability of another
USUAL_REACH = 10.0  # published searches reach 7 to 28
DIGITS = 5  # of recorded probabilities: enough for plots


def entropies(decisions: Sequence[Decision], probabilities: Probabilities) -> dict[str, float]:
    """Return the mean entropy of each group as a share of the largest possible: 1 is undecided, 0 decided."""
    found: dict[str, list[float]] = {}
    for decision in decisions:
        row = probabilities[decision.name]
        if len(row) > 1:
            nats = -sum(p * math.log(p) for p in row if p > 0)
            found.setdefault(decision.group, []).append(nats / math.log(len(row)))
    return {group: sum(values) / len(values) for group, values in found.items()}


def expected_depths(decisions: Sequence[Decision], probabilities: Probabilities) -> dict[str, float]:
    """Return the expectation of every depth (AutoRTNet, Figure 5)."""
    return {
        decision.name: sum(map(_times, probabilities[decision.name], decision.options))
        for decision in decisions
        if decision.group == "depth"
    }


def record(probabilities: Probabilities) -> dict[str, Json]:
    """Return probabilities as they are stored."""
    return {name: [round(value, DIGITS) for value in row] for name, row in probabilities.items()}


def collapsed(
    decisions: Sequence[Decision], probabilities: Probabilities, *, idle: Sequence[str], above: float
) -> str | None:
    """Say what collapsed: nothing is computed any more where something could be, or every depth is at its least."""
    able = _able(decisions, idle)
    if able and all(_share(row, probabilities, idle) > above for row in able):
        return f"all {len(able)} decisions that offer {' or '.join(idle)} prefer it with a probability above {above:g}"
    depths = [row for row in decisions if row.group == "depth" and len(row.options) > 1]
    if depths and all(probabilities[row.name][0] > above for row in depths):
        return f"all {len(depths)} depths prefer their least with a probability above {above:g}"
    return None


def inert(
    decisions: Sequence[Decision], probabilities: Probabilities, *, idle: Sequence[str], share: float
) -> str | None:
    """Say so where the likeliest network computes next to nothing, however undecided its distribution is."""
    able = _able(decisions, idle)
    idlers = [row for row in able if row.options[_likeliest(probabilities[row.name])] in idle]
    if not able or len(idlers) < share * len(able):
        return None
    return f"{len(idlers)} of {len(able)} decisions that offer {' or '.join(idle)} end with it"


def too_slow(rate: float, steps: int) -> str | None:
    """Say so where Adam, which moves a logit by about its rate per step, cannot decide anything in so few steps."""
    reach = rate * steps
    if reach >= LEAST_REACH:
        return None
    return (
        f"{steps} steps at logits.lr {rate:g} move a logit by {reach:.2g} at most, too little to decide: the choice "
        f"will be close to chance. Raise logits.lr to about {USUAL_REACH / steps:.2g}, or search longer."
    )


def hopeless(
    decisions: Sequence[Decision],
    tables: Sequence[Probabilities],
    left: Mapping[str, Sequence[int]],
    *,
    below: float,
) -> list[tuple[str, int]]:
    """Return the operators that all tables give less than `below`; the likeliest of a decision are never among them."""
    found = []
    for decision in decisions:
        rows = [table[decision.name] for table in tables]
        best = {row.index(max(row)) for row in rows}
        for option in left[decision.name] if decision.group == "op" else ():
            if option not in best and max(row[option] for row in rows) < below:
                found.append((decision.name, option))
    return found


def advice(what: str | None, *, weight: float) -> str | None:
    """Say what a collapse means and what to change, where there is one."""
    if what is None:
        return None
    return (
        f"the search collapsed: {what}. The cost term outweighs the quality: lower cost.weight (now {weight:.3g}), "
        "raise the budget, or lengthen the warm-up of the weights."
    )


def _able(decisions: Sequence[Decision], idle: Sequence[str]) -> list[Decision]:
    return [row for row in decisions if any(option in idle for option in row.options)]


def _share(decision: Decision, probabilities: Probabilities, idle: Sequence[str]) -> float:
    return sum(
        p for p, option in zip(probabilities[decision.name], decision.options, strict=True) if option in idle
    )


def _likeliest(row: Sequence[float]) -> int:
    return max(range(len(row)), key=row.__getitem__)


def _times(probability: float, option: Json) -> float:
    return probability * option if isinstance(option, int | float) else math.nan

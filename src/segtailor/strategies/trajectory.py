"""What a gradient search records over time, and what it warns about: collapsed, inert or too slow searches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from segtailor.core.codec import Json
from segtailor.core.space import Decision

Probabilities = Mapping[str, Sequence[float]]  # decision name -> probability of each option
# How far logits can move in a search: learning rate times steps.
MIN_LOGIT_REACH = 2.0  # below it no option gets more than a few times the probability of another
USUAL_LOGIT_REACH = 10.0  # published searches reach 7 to 28
RECORDED_DIGITS = 5  # of probabilities: enough for plots


class SearchWarnings:
    """Warnings of a search, oldest first, each once; `news` returns those that no progress record has shown yet."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._shown = 0

    def add(self, text: str | None) -> None:
        """Add a warning, if there is one; two warnings that are equal up to the first colon count as the same."""
        if text and not any(text.partition(":")[0] == known.partition(":")[0] for known in self.all):
            self.all.append(text)

    def news(self) -> str | None:
        """Return the warnings since the last call as one text, or none."""
        new, self._shown = self.all[self._shown :], len(self.all)
        return " ".join(new) or None

    def restore(self, shown: list[str]) -> None:
        """Start from warnings that were shown before."""
        self.all, self._shown = shown, len(shown)


def entropies(decisions: Sequence[Decision], probabilities: Probabilities) -> dict[str, float]:
    """Return the mean entropy of each group as a share of the largest possible one: 1 is undecided, 0 decided."""
    by_group: dict[str, list[float]] = {}
    for decision in decisions:
        row = probabilities[decision.name]
        if len(row) > 1:
            nats = -sum(p * math.log(p) for p in row if p > 0)
            by_group.setdefault(decision.group, []).append(nats / math.log(len(row)))
    return {group: sum(values) / len(values) for group, values in by_group.items()}


def expected_depths(decisions: Sequence[Decision], probabilities: Probabilities) -> dict[str, float]:
    """Return the expected value of every depth (AutoRTNet, Figure 5)."""
    return {
        decision.name: sum(map(_times, probabilities[decision.name], decision.options))
        for decision in decisions
        if decision.group == "depth"
    }


def record(probabilities: Probabilities) -> dict[str, Json]:
    """Return probabilities as they are stored."""
    return {name: [round(value, RECORDED_DIGITS) for value in row] for name, row in probabilities.items()}


def collapsed(
    decisions: Sequence[Decision], probabilities: Probabilities, *, idle: Sequence[str], above: float
) -> str | None:
    """Return a warning if all decisions prefer to compute nothing, or all depths prefer their smallest value."""
    offering = _offering(decisions, idle)
    if offering and all(_share(row, probabilities, idle) > above for row in offering):
        names = " or ".join(idle)
        return (
            f"all {len(offering)} decisions that offer {names} prefer it with a probability above {above:g}"
        )
    depths = [row for row in decisions if row.group == "depth" and len(row.options) > 1]
    if depths and all(probabilities[row.name][0] > above for row in depths):
        return f"all {len(depths)} depths prefer their least with a probability above {above:g}"
    return None


def inert(
    decisions: Sequence[Decision], probabilities: Probabilities, *, idle: Sequence[str], share: float
) -> str | None:
    """Return a warning if the most likely network computes almost nothing, even if its distribution is undecided."""
    offering = _offering(decisions, idle)
    ending_idle = [row for row in offering if row.options[_most_likely(probabilities[row.name])] in idle]
    if not offering or len(ending_idle) < share * len(offering):
        return None
    return f"{len(ending_idle)} of {len(offering)} decisions that offer {' or '.join(idle)} end with it"


def too_slow(rate: float, steps: int) -> str | None:
    """Return a warning if there are too few steps: Adam moves a logit by about its learning rate per step."""
    reach = rate * steps
    if reach >= MIN_LOGIT_REACH:
        return None
    return (
        f"{steps} steps at logits.lr {rate:g} move a logit by {reach:.2g} at most, too little to decide: the choice "
        f"will be close to chance. Raise logits.lr to about {USUAL_LOGIT_REACH / steps:.2g}, or search longer."
    )


def unlikely_operators(
    decisions: Sequence[Decision],
    tables: Sequence[Probabilities],
    left: Mapping[str, Sequence[int]],
    *,
    below: float,
) -> list[tuple[str, int]]:
    """Return operators with a probability under `below` in all tables, never the most likely ones of a decision."""
    unlikely = []
    for decision in decisions:
        rows = [table[decision.name] for table in tables]
        best = {row.index(max(row)) for row in rows}
        for option in left[decision.name] if decision.group == "op" else ():
            if option not in best and max(row[option] for row in rows) < below:
                unlikely.append((decision.name, option))
    return unlikely


def advice(what: str | None, *, weight: float) -> str | None:
    """Turn what `collapsed` or `inert` found, if anything, into a warning that says what to change."""
    if what is None:
        return None
    return (
        f"the search collapsed: {what}. The cost term outweighs the quality: lower cost.weight (now {weight:.3g}), "
        "raise the budget, or lengthen the warm-up of the weights."
    )


def _offering(decisions: Sequence[Decision], idle: Sequence[str]) -> list[Decision]:
    return [row for row in decisions if any(option in idle for option in row.options)]


def _share(decision: Decision, probabilities: Probabilities, idle: Sequence[str]) -> float:
    return sum(
        p for p, option in zip(probabilities[decision.name], decision.options, strict=True) if option in idle
    )


def _most_likely(row: Sequence[float]) -> int:
    return max(range(len(row)), key=row.__getitem__)


def _times(probability: float, option: Json) -> float:
    return probability * option if isinstance(option, int | float) else math.nan

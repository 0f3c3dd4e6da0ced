"""How the time is divided: deadlines before training, shares of the stages that train, time reserved for the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from segtailor.tailoring.recipe import Effort, TailorRecipe

SHARES = {  # of the time for training, by stage; `train` is for the winner and the ready networks beside it
    "search": 0.32,
    "teacher": 0.12,
    "train": 0.56,
}
RESERVED_TRAINING_SHARE = 0.5  # of the time asked for: reserved for teacher, winner and ready networks
BUDGET_SHARE = 0.95  # of the budget: what the p95 latency may be before training
CHOOSE_SHARE, READY_SHARE = 0.06, 0.05  # of the time asked for: timing candidates, and ready networks
MIN_PACE, MAX_PACE = 0.25, 10.0  # steps of a stage, in those that were planned
FIXED_SECONDS = 25.0  # data check, timing of the fastest networks, of candidates and of ready networks
USUAL_CLOSING_SECONDS = 45.0  # of a usual network, see `closing_seconds`
FIT_SHARE = 0.07  # of the time asked for: timing whole networks, to which prices are fitted
MAX_FIT_SECONDS = 120.0
MAX_FIT_LEFT_SHARE = 0.2  # of the time that is left before training, for the same
MIN_STEPS = 2  # of any training
MIN_TRAIN_STEPS = 200  # of the network that is delivered, even if it then ends late
MAX_OVERTIME_SHARE = 0.5  # of the time asked for: what would end later is not started
ENOUGH_STEPS = 400  # of a training: larger networks are not searched for below this
FURTHER_STEPS = (
    2500  # no second ready network is trained unless each training is so long: time is worth more to the user
)
SEEDED_STEPS = (
    4000  # the best two networks are trained with two seeds only if each training is at least so long
)
MAX_LATE_SHARE = 0.08  # of the time asked for: a ready network that would end later is left out or shortened
CLOSING_FIXED_SECONDS = 11.5  # of the stages after training
CLOSING_PREPARATIONS = 5.0  # times that these stages prepare a network for a runtime
FINAL_TIMING_SECONDS = 2.4  # last timing of a trained network, without preparing it
TRAINING_START_SECONDS = 1.5  # starting a training and saving its result
SCORING_STEPS = (
    2 / 3
)  # seconds to score a batch, in training steps: each image is scored twice, without gradients
COMMAND_SECONDS = 5.0  # starting the command, drawing the report


class TrainingTime(NamedTuple):
    """Seconds for fitting prices to networks that are timed, and those that are left for training."""

    fit_seconds: float
    rest: float


def training_time(seconds: float) -> TrainingTime:
    """Return what is left for training when everything else is done."""
    fit = min(FIT_SHARE * seconds, MAX_FIT_SECONDS)
    left = seconds - FIXED_SECONDS - USUAL_CLOSING_SECONDS - fit
    return TrainingTime(fit, max(left, 0.3 * seconds))


def stage_seconds(effort: Effort, stage: str) -> float:
    """Return the time planned for a stage that trains."""
    return SHARES[stage] * effort.training_seconds


def expected_seconds(recipe: TailorRecipe) -> float:
    """Return how long a plan takes: the time asked for, unless even the minimum takes longer."""
    effort, asked = recipe.effort, recipe.request.seconds
    rest = recipe.planning_seconds + FIXED_SECONDS + effort.fit_seconds + effort.closing_seconds
    if asked is None:
        return rest + effort.training_seconds
    return max(asked, rest + MIN_PACE * effort.training_seconds)


def pace(effort: Effort, stage: str, *, left: float | None) -> float:
    """Return the factor on the planned steps of a stage, if `left` seconds are left for it and all later stages."""
    if left is None or stage not in SHARES:
        return 1.0
    stages = list(SHARES)
    planned = sum(stage_seconds(effort, later) for later in stages[stages.index(stage) :])
    return min(max((left - effort.closing_seconds) / planned, MIN_PACE), MAX_PACE)


def seconds_before_training(left: float, effort: Effort, *, asked: float) -> float:
    """Return how many of the seconds that are left may be used before training begins."""
    return left - effort.closing_seconds - RESERVED_TRAINING_SHARE * asked


def closing_seconds(preparing: float, *, untimed: int = 0) -> float:
    """Return the seconds of everything after the trainings: export, verification, int8, layers, report, and the last
    timing of `untimed` networks.

    `preparing` are the seconds that a network needed to be prepared for its first timing, which is most of the work.
    The constants were measured with networks of seven to eighty different layers.
    """
    return (
        COMMAND_SECONDS
        + CLOSING_FIXED_SECONDS
        + CLOSING_PREPARATIONS * preparing
        + untimed * (preparing + FINAL_TIMING_SECONDS)
    )


def extra_training_seconds(preparing: float, *, step: float, batches: float) -> float:
    """Return the seconds of a training besides its steps: start, end, scoring `batches`, and its last timing."""
    return TRAINING_START_SECONDS + SCORING_STEPS * step * batches + preparing + FINAL_TIMING_SECONDS


@dataclass(frozen=True, kw_only=True)
class TrainingCost:
    """Seconds of a training: `step` for each step, `rest` for everything else that belongs to it."""

    step: float
    rest: float = 0.0

    def seconds(self, steps: int) -> float:
        """Return how long a training of so many steps takes."""
        return steps * self.step + self.rest

    def steps(self, seconds: float) -> int:
        """Return how many steps take so many seconds, everything else not counted."""
        return max(MIN_STEPS, int(seconds / self.step))


class EqualTime(NamedTuple):
    """Seconds for the steps of each training: that of the winner, and those of so many ready networks.

    With two `seeds`, the winner and one ready network are trained a second time.
    """

    seconds: float
    ready: int
    seeds: int = 1


def equal_time(winner: TrainingCost, ready: Sequence[TrainingCost], *, seconds: float) -> EqualTime:
    """Divide seconds so that the winner and the ready networks train for the same time.

    One ready network if there is any; more of them, in the order given, while all get at least FURTHER_STEPS; a second
    seed if all get at least SEEDED_STEPS even then.
    """
    found = _shared_equally((winner, *ready[:1]), seconds)
    for count in range(2, len(ready) + 1):
        costs = (winner, *ready[:count])
        shorter = _shared_equally(costs, seconds)
        if shorter.seconds < FURTHER_STEPS * max(cost.step for cost in costs):
            break
        found = shorter
    again = (winner, *ready[: found.ready], winner, *ready[: min(found.ready, 1)])
    each = _shared_equally(again, seconds).seconds
    if found.ready and each >= SEEDED_STEPS * max(cost.step for cost in again):
        return EqualTime(each, found.ready, seeds=2)
    return found


def _shared_equally(costs: Sequence[TrainingCost], seconds: float) -> EqualTime:
    each = (seconds - sum(cost.rest for cost in costs)) / len(costs)
    return EqualTime(max(each, 0.0), len(costs) - 1)

"""Where the time is divided: deadlines before training, shares of the stages that train, what is kept for the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from segtailor.tailoring.settings import Effort, TailorRecipe

SHARES = {
    "search": 0.32,
    "teacher": 0.12,
    "train": 0.56,
}  # of the time that is for training; `train` is that of the winner and of the ready networks beside it
TRAINING_SHARE = (
    0.5  # of the time asked for is kept for teacher, winner and ready networks, whatever came before
)
CHOOSE_SHARE, READY_SHARE = 0.06, 0.05  # of the time asked for, to measure what was found, and ready networks
PACK_OF_REST = 0.4  # the most of what is left before training that a device pack may take
PACES = (0.25, 10.0)  # the least and the most of what was planned
FIXED_SECONDS = 25.0  # doctor, the fastest network, choosing, measuring ready networks
CLOSING_SECONDS = 45.0  # of a usual network, see `closing_seconds`
PACK_SHARE, PACK_MINUTES = 0.15, (2.0, 10.0)  # of the whole time; at least and at most
PACK_WORTH = 900.0  # seconds in all below which a search goes by work, not by a table of operators
PACK_MAKINGS = 12  # networks that a pack must have time to make ready and measure, or it is not worth making
FEWEST = 2  # steps of any training
LEAST_STEPS = 200  # of the network that is delivered: a shorter training ends late rather than so early
OVERTIME_SHARE = 0.5  # of the time asked for: what would end later than that is not begun
ENOUGH_STEPS = (
    400  # networks that cannot be trained so long are not searched for, nor is another ready one added
)
LATEST = 1.08  # of the time asked for: a training that would end later is left out, or shortened
CLOSING_FIXED, CLOSING_MAKINGS = (
    11.5,
    5.0,
)  # seconds of the end; and how often a network is made ready for a runtime in it
TIMED_SECONDS = 2.4  # the last timing of a trained network, besides making it ready
LESSON_SECONDS = 1.5  # starting a training and saving what came of it
SCORED = 2 / 3  # of a step over as many pictures: each is scored twice, and a look is a third of learning
EDGE_SECONDS = 5.0  # starting the command, drawing the report


class TrainingTime(NamedTuple):
    """How the time is divided: minutes and networks of the device pack, seconds for training."""

    pack_minutes: float
    pack_networks: int
    rest: float


def training_time(seconds: float, *, packless: bool) -> TrainingTime:
    """Return what is left for training when everything else is done."""
    left = seconds - FIXED_SECONDS - CLOSING_SECONDS
    if packless:
        return TrainingTime(0.0, 0, max(left, 0.3 * seconds))
    pack = min(max(PACK_SHARE * seconds / 60, PACK_MINUTES[0]), PACK_MINUTES[1])
    networks = 6 if seconds < PACK_WORTH else 30
    left -= 60 * pack
    return TrainingTime(pack, networks, max(left, 0.3 * seconds))


def stage_seconds(effort: Effort, stage: str) -> float:
    """Return the time planned for a stage that trains."""
    return SHARES[stage] * effort.training_seconds


def expected_seconds(recipe: TailorRecipe) -> float:
    """Return how long a plan takes: the time asked for, unless even the least of it takes longer."""
    effort, asked = recipe.effort, recipe.request.seconds
    rest = recipe.planning_seconds + FIXED_SECONDS + 60 * effort.pack_minutes + effort.closing_seconds
    return (
        rest + effort.training_seconds
        if asked is None
        else max(asked, rest + PACES[0] * effort.training_seconds)
    )


def pace(effort: Effort, stage: str, *, left: float | None) -> float:
    """Return how much more (or less) of a stage fits into the seconds that are left for everything than was planned."""
    if left is None or stage not in SHARES:
        return 1.0
    stages = list(SHARES)
    planned = sum(stage_seconds(effort, ahead) for ahead in stages[stages.index(stage) :])
    return min(max((left - effort.closing_seconds) / planned, PACES[0]), PACES[1])


def before_training(left: float, effort: Effort, *, asked: float) -> float:
    """Return how much of the seconds that are left may be spent before training begins."""
    return left - effort.closing_seconds - TRAINING_SHARE * asked


def closing_seconds(making: float, *, untimed: int = 0) -> float:
    """Return how long all takes that comes after the trainings: export, proof, int8, layers, report, timing `untimed`
    networks.

    `making` is how long it took to make a network ready for its first timing, which is what most of the end consists
    of: the figures above are those of networks with seven to eighty different layers.
    """
    return EDGE_SECONDS + CLOSING_FIXED + CLOSING_MAKINGS * making + untimed * (making + TIMED_SECONDS)


def lesson_seconds(making: float, *, step: float, batches: float) -> float:
    """Return what a training takes besides its steps: start, end, scoring so many batches, and its last timing."""
    return LESSON_SECONDS + SCORED * step * batches + making + TIMED_SECONDS


class Rival(NamedTuple):
    """A training that is to be as long as others: seconds of a step, and of all else that belongs to it."""

    step: float
    rest: float = 0.0

    def seconds(self, steps: int) -> float:
        """Return how long so many steps take, and all else."""
        return steps * self.step + self.rest

    def steps(self, seconds: float) -> int:
        """Return how many steps fit."""
        return max(FEWEST, int((seconds - self.rest) / self.step))


class Length(NamedTuple):
    """One number of steps for the winner and for so many ready networks."""

    steps: int
    ready: int


def common_length(winner: Rival, ready: Sequence[Rival], *, seconds: float) -> Length:
    """Divide seconds so that the winner and ready networks get the same number of steps.

    One ready network if there is any; more of them, in the order given, as long as that leaves enough steps.
    """
    found = _length(winner, ready[:1], seconds)
    for count in range(2, len(ready) + 1):
        more = _length(winner, ready[:count], seconds)
        if more.steps < ENOUGH_STEPS:
            break
        found = more
    return found


def _length(winner: Rival, ready: Sequence[Rival], seconds: float) -> Length:
    everyone = (winner, *ready)
    together = Rival(step=sum(one.step for one in everyone), rest=sum(one.rest for one in everyone))
    return Length(together.steps(seconds), len(ready))

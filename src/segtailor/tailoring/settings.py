"""What a tailoring is asked for, and everything decided about it: plain data that a run directory keeps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from segtailor.core.errors import UserError
from segtailor.core.ranges import check_seed
from segtailor.core.target import Includes
from segtailor.report.document import ChosenSetting
from segtailor.runs import Context

if TYPE_CHECKING:
    from segtailor.tailoring.job import Tailoring

FEWEST_SECONDS = 180.0
GIGA = 1e9
LABELS: Includes = "network+resize+argmax"  # what a user waits for: from a picture to labels of its size


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user asked for, as typed; what is left out is chosen for the data and the machine."""

    data: str
    target: str
    budget_ms: float
    recipe: str = "auto"
    seconds: float | None = None
    image: tuple[int, int] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed, name="--seed")
        if not self.budget_ms > 0:
            raise UserError(
                f"a budget of {self.budget_ms} ms cannot be kept; give for example 12ms or 60fps."
            )
        if self.seconds is not None and self.seconds < FEWEST_SECONDS:
            raise UserError(
                f"--time: {self.seconds:g} seconds are too few for a search; give at least {FEWEST_SECONDS / 60:g}m."
            )


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Seconds of a training step: a part for each step and one for each thousand million multiply-accumulates."""

    base: float
    per_gmac: float

    def step(self, macs: float) -> float:
        """Return the seconds of a step over images that together cost `macs` multiply-accumulates."""
        return self.base + self.per_gmac * macs / GIGA

    def macs(self, seconds: float) -> float:
        """Return how much work a step of so many seconds can do."""
        return GIGA * max(seconds - self.base, 0.0) / max(self.per_gmac, 1e-9)


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is done: steps of each training, and candidates of the search. Zero leaves a stage out.

    `train_steps` is the length of the winner's training and of those of at most `baselines` ready networks beside it.
    `supernet_steps` is the length of a search by gradients, which has no candidates.
    """

    candidates: int
    candidate_steps: int
    teacher_steps: int
    train_steps: int
    baselines: int
    pack_minutes: float
    pack_networks: int
    training_seconds: float
    closing_seconds: float
    supernet_steps: int = 0


@dataclass(frozen=True, kw_only=True)
class TailorRecipe:
    """A request with every choice made; running it again is the reproduction.

    `data` is the request's, less the samples that cannot be read. `image` is the size that the network is exported
    and timed at. `search_limit_ms` is what the search may spend on the network alone, so that the whole keeps the
    budget; `search_limit_macs` is about as much arithmetic on this target, for a search without a device pack.
    `timing_seconds` is how long a network is timed when there are several to choose from, final ones twice as long.
    `least_gain` is what a network must have learned to be delivered: that share of the way from one class everywhere
    to perfect labels.
    """

    request: Request
    data: str
    system: str
    image: tuple[int, int]
    crop: tuple[int, int]
    batch: int
    lr: float
    effort: Effort
    search_limit_ms: float
    search_limit_macs: float
    workers: int = 1
    precision: str = "fp32"
    planning_seconds: float = 0.0
    quantise: bool = True
    timing_seconds: float = 1.0
    least_gain: float | None = 0.1
    includes: Includes = LABELS
    choices: tuple[ChosenSetting, ...] = field(default_factory=tuple)

    def job(self, place: Context) -> Tailoring:
        """Return the work, ready to begin or to go on."""
        from segtailor.tailoring.job import Tailoring

        return Tailoring(recipe=self, place=place)

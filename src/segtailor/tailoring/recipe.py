"""What a tailoring is asked for, and every decision about it: the recipe that its run directory keeps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from segtailor.core.codec import Json
from segtailor.core.errors import UserError
from segtailor.core.ranges import check_seed
from segtailor.core.target import IMAGE_TO_LABELS, Includes
from segtailor.report.document import ChosenSetting
from segtailor.runs import Context

if TYPE_CHECKING:
    from segtailor.tailoring.job import Tailoring

MIN_TIME_SECONDS = 180.0
GIGA = 1e9


@dataclass(frozen=True, kw_only=True)
class TailorRequest:
    """What the user asked for; what is left out is chosen for the data and the machine."""

    data: str
    target: str
    budget_ms: float
    recipe: str = "auto"
    seconds: float | None = None
    image: tuple[int, int] | None = None
    seed: int = 0
    start: str = "auto"

    def __post_init__(self) -> None:
        check_seed(self.seed, name="--seed")
        if not self.budget_ms > 0:
            raise UserError(
                f"a budget of {self.budget_ms} ms cannot be kept; give for example 12ms or 60fps."
            )
        if self.seconds is not None and self.seconds < MIN_TIME_SECONDS:
            raise UserError(
                f"--time: {self.seconds:g} seconds are too few for a search; give at least {MIN_TIME_SECONDS / 60:g}m."
            )


@dataclass(frozen=True, kw_only=True)
class TrainingSpeed:
    """Seconds of a training step: `base` for every step, and `per_gmac` for every 1e9 multiply-accumulates of it."""

    base: float
    per_gmac: float

    def step(self, macs: float) -> float:
        """Return the seconds of a step over images that together cost `macs` multiply-accumulates."""
        return self.base + self.per_gmac * macs / GIGA

    def macs(self, seconds: float) -> float:
        """Return the multiply-accumulates of a step that takes `seconds`."""
        return GIGA * max(seconds - self.base, 0.0) / max(self.per_gmac, 1e-9)


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is done: steps of each training, and candidates of the search. Zero leaves a stage out.

    `train_steps` is the length of the training of the winner, and of at most `baselines` ready networks beside it.
    `supernet_steps` is the length of a search by gradients, which has no candidates. `fit_seconds` are for timing whole
    networks, to which prices are fitted; without it multiply-accumulates are counted. `training_seconds` are for all
    stages that train, `closing_seconds` for everything after them.
    """

    candidates: int
    candidate_steps: int
    teacher_steps: int
    train_steps: int
    baselines: int
    training_seconds: float
    closing_seconds: float
    supernet_steps: int = 0
    fit_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class TailorRecipe:
    """A request with every choice made; running it again is the reproduction.

    `data` is that of the request, without the samples that cannot be read. `image` is the size that the network is
    exported and timed at. `search_limit_ms` is the latency limit of the search for the network alone, so that the
    network with resize and arg max keeps the budget; `search_limit_macs` is about the same limit in
    multiply-accumulates, for a search without prices. `timing_seconds` is how long a network is timed before
    training; trained ones are timed twice as long. `least_gain` is the mIoU that a network needs to be delivered, as a
    share of the way from predicting one class everywhere (0) to perfect labels (1).
    """

    request: TailorRequest
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
    precision: Literal["fp32", "bf16"] = "fp32"
    planning_seconds: float = 0.0
    quantise: bool = True
    timing_seconds: float = 1.0
    least_gain: float | None = 0.1
    includes: Includes = IMAGE_TO_LABELS
    choices: tuple[ChosenSetting, ...] = field(default_factory=tuple)

    def job(self, context: Context) -> Tailoring:
        """Return the work, ready to begin or to continue."""
        from segtailor.tailoring.job import Tailoring

        return Tailoring(recipe=self, context=context)

    def carry_out(self, context: Context) -> dict[str, Json]:
        """Do the stages that are not done yet in `context.folder`; a finished tailoring returns its result."""
        from segtailor.tailoring.job import carry_out

        return carry_out(self, context)

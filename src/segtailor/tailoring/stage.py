"""What a stage of a tailoring is given, and what it returns.

Every stage returns one frozen value, which `stages/NAME.json` keeps. A field whose default is None is left out of the
file where it is None.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from segtailor.core.atomic import write_json
from segtailor.core.codec import Json, from_json, read_json, to_json
from segtailor.core.errors import RunProblem
from segtailor.core.plan import Shape
from segtailor.core.space import Architecture, SearchSpace
from segtailor.core.target import Includes, Target, parse_target
from segtailor.core.task import Preprocessing
from segtailor.costs import Macs
from segtailor.costs.fitted import FittedLatency
from segtailor.data.dataset import Dataset, Finding, preprocessing_of
from segtailor.data.doctor import SplitFacts
from segtailor.deploy.quantise import Int8Tuning, Reading
from segtailor.recipes.front import SEARCHED as SEARCHED
from segtailor.recipes.recipe import Recipe, carry_out
from segtailor.recipes.timed import TimedNetwork as TimedNetwork
from segtailor.runs import Context, Layout
from segtailor.tailoring.machine import timing_settings
from segtailor.tailoring.recipe import TailorRecipe
from segtailor.tailoring.time_plan import TrainingCost, seconds_before_training, stage_seconds
from segtailor.targets.graph import quick_form
from segtailor.targets.timing import Measurement, TimingSettings
from segtailor.verbs.bench import bench
from segtailor.verbs.resume import resume
from segtailor.verbs.search import system_recipe

TRAINING_NOISE = 0.015  # mIoU by which two trainings of one network may differ: less says nothing
SHORT_TIMING_SECONDS = 0.1  # where only the preparation is of interest

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class DataOutcome:
    """Stage `data`: what the data check found in the data as given, and the data that is `used`."""

    ok: bool
    findings: tuple[Finding, ...]
    splits: Mapping[str, SplitFacts]
    used: str


@dataclass(frozen=True, kw_only=True)
class FastestOutcome(TimedNetwork):
    """Stage `fastest`: the smallest ready `networks`, the fastest of them, and why to stop if even that is too slow."""

    networks: tuple[TimedNetwork, ...]
    possible: bool
    stop: str | None


@dataclass(frozen=True, kw_only=True)
class PackOutcome:
    """Stage `pack`: prices that are fitted to networks that were timed; without a `fit`, MACs are counted.

    `reason` says how far to trust them; `mape` and the correlations are those of each network predicted from all
    others. `seconds` are those of each measured network, `slow_runs` is the median over the fastest time, `rest_ms`
    what the stages after the network take. `limit_ms` is the limit of the search that follows from these.
    """

    reason: str
    fit: FittedLatency | None = None
    limit_ms: float | None = None
    rest_ms: float | None = None
    slow_runs: float | None = None
    seconds: tuple[float, ...] | None = None
    networks: int | None = None
    pearson: float | None = None
    spearman: float | None = None
    mape: float | None = None

    def cost(self) -> FittedLatency | Macs:
        """Return what networks cost in the search."""
        return self.fit or Macs()


@dataclass(frozen=True, kw_only=True)
class FoundNetwork:
    """A network of the search: its trial, its quality after a short training, and its cost in the search."""

    trial: int
    fingerprint: str
    quality: float
    cost: float


@dataclass(frozen=True, kw_only=True)
class SearchOutcome:
    """Stage `search`: the run directory, the networks on the front, and the file of a searched teacher if any.

    `shared_steps` is the length of the training of weights that the networks share, where they do.
    """

    run: str
    found: tuple[FoundNetwork, ...]
    trials: int
    strategy: str
    unit: str
    teacher: str | None
    shared_steps: int | None = None


@dataclass(frozen=True, kw_only=True)
class TimedCandidate(TimedNetwork):
    """A searched network that was timed; a smaller one that the search did not judge has no trial and no quality."""

    architecture: str
    trial: int | None
    fingerprint: str
    quality: float | None
    cost: float


@dataclass(frozen=True, kw_only=True)
class ChosenNetwork(TimedNetwork):
    """Stage `choose`: the network that will be trained (`architecture` is a file or the name of a ready network).

    `measured` are all candidates that were timed; `kept` says whether the chosen network keeps the budget, `used` which
    share of the budget it uses, `unused` why, in one sentence, where that is less than half.
    """

    architecture: str
    measured: tuple[TimedCandidate, ...]
    kept: bool
    used: float | None = None
    unused: str | None = None
    trial: int | None = None
    fingerprint: str | None = None
    quality: float | None = None
    cost: float | None = None


@dataclass(frozen=True, kw_only=True)
class ReadyOutcome:
    """Stage `ready`: the ready networks that keep the budget and are worth training, best expected first."""

    networks: tuple[TimedNetwork, ...]


@dataclass(frozen=True, kw_only=True)
class TeacherOutcome:
    """Stage `teacher`: the trained teacher, or the `reason` why there is none."""

    network: str | None
    model: str | None
    reason: str | None = None
    run: str | None = None
    steps: int | None = None
    miou: float | None = None
    params: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class LengthsOutcome:
    """Stage `lengths`: the number of steps of the winner, and the ready `networks` that are trained beside it, with how
    many `seeds` the winner and the best of them.

    Where a time was asked for: `seconds` for the steps of each training, what a network takes to be prepared on
    average, the cost of the training of the winner and of each ready network, and why to stop if the time is far too
    short.
    """

    steps: int
    networks: tuple[str, ...]
    seeds: int = 1
    seconds: float | None = None
    making_seconds: float | None = None
    costs_seconds: tuple[TrainingCost, ...] | None = None
    stop: str | None = None


@dataclass(frozen=True, kw_only=True)
class TrainedNetwork:
    """A trained network: its run directory, its bundle, and its mIoU on the validation split. Stage `train`.

    `seconds` is the time that its steps were given, where a time was asked for.
    """

    network: str
    run: str
    model: str
    steps: int
    miou: float
    params: int
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class BaselinesOutcome:
    """Stage `baselines`: the trained ready networks, and the names of those that there was no time for."""

    networks: tuple[TrainedNetwork, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RepeatsOutcome:
    """Stage `repeats`: the winner and the best ready network trained once more, with another seed; often none is."""

    networks: tuple[TrainedNetwork, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ComparedNetwork(TrainedNetwork):
    """A trained network with its latency, and the mIoU of its training with another seed, if there was one."""

    median_ms: float
    p95_ms: float
    repeated_miou: float | None = None

    @property
    def mean_miou(self) -> float:
        """The mIoU by which networks are compared: the mean of its trainings."""
        return self.miou if self.repeated_miou is None else (self.miou + self.repeated_miou) / 2


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """Stage `recommend`: the best of the trained `networks`, and the best ready one within the budget.

    `worth` says whether the searched network is the best. `trivial_miou` is that of one class everywhere; `stop` says
    why the best is not good enough to be delivered.
    """

    networks: tuple[ComparedNetwork, ...]
    network: str
    model: str
    miou: float
    worth: bool
    best_ready: str | None
    trivial_miou: float | None = None
    stop: str | None = None


@dataclass(frozen=True, kw_only=True)
class ExportOutcome:
    """Stage `export`: the written files and how equal they are to the network; see `recipes.export.Exported`."""

    files: tuple[str, ...]
    verify: str
    file: str
    equal: bool
    max_logit_difference: float | None
    max_relative_logit_difference: float | None
    label_agreement: float
    headline: str
    miou_drift: float | None
    limits: Mapping[str, Any]
    conditions: Mapping[str, Any]
    ran: bool = True


@dataclass(frozen=True, kw_only=True)
class Int8Outcome:
    """Stage `int8`: whether the quantised network is kept; see `deploy.quantise.Int8Decision` for what was measured.

    Only `reason` is known where int8 was not tried (`decided` is False).
    """

    decided: bool
    kept: bool
    reason: str
    target: str | None = None
    before: Reading | None = None
    after: Reading | None = None
    ratio: float | None = None
    miou_change: float | None = None
    limit: float | None = None
    label_agreement: float | None = None
    images: int | None = None
    samples: int | None = None
    method: str | None = None
    data: str | None = None
    image: tuple[int, int] | None = None
    includes: Includes | None = None
    source: str | None = None
    file: str | None = None
    warnings: tuple[str, ...] | None = None
    tuning: Int8Tuning | None = None


@dataclass(frozen=True, kw_only=True)
class ContractOutcome(Measurement):
    """Stage `contract`: the best measurement of the exported file, all tries, and whether it keeps the budget."""

    tries_p95_ms: tuple[float, ...]
    file: str
    met: bool
    sentence: str
    budget_ms: float


@dataclass(frozen=True, kw_only=True)
class LayersOutcome:
    """Stage `layers`: milliseconds of each layer alone, and of the network without resize and arg max."""

    layers: Mapping[str, float]
    whole_ms: float


def write_outcome(file: Path, outcome: Any, *, stage: str) -> None:
    """Write what a stage returned."""
    write_json(file, outcome_document(outcome), what=f"outcome of stage '{stage}'")


def read_outcome(kind: type[T], file: Path, *, stage: str) -> T:
    """Read what a stage returned in an earlier session."""
    what = f"stage '{stage}'"
    return from_json(kind, read_json(file, what=what, error=RunProblem), what=what, error=RunProblem)


def outcome_document(outcome: Any) -> dict[str, Json]:
    """Return the JSON form of what a stage returned."""
    optional = {item.name for item in fields(outcome) if item.default is None}
    document: dict[str, Json] = to_json(outcome)
    return {key: value for key, value in document.items() if value is not None or key not in optional}


@dataclass(frozen=True, kw_only=True)
class StageContext:
    """What every stage is given besides the outcomes that it needs.

    `context.folder` is that of the tailoring, `dataset` is `recipe.data`, opened once. `left` is how much of the time
    asked for was left when the stage began, `pace` the factor on its planned steps.
    """

    recipe: TailorRecipe
    context: Context
    dataset: Dataset
    pace: float = 1.0
    left: float | None = None
    began: float = field(default_factory=time.monotonic)

    @property
    def folder(self) -> Path:
        """The run directory of the tailoring."""
        return self.context.folder

    @property
    def classes(self) -> int:
        """The number of classes of the dataset."""
        return self.dataset.task.outputs

    @cached_property
    def preprocessing(self) -> Preprocessing:
        """How the images of the dataset are normalised; computed from them where they are no RGB."""
        return preprocessing_of(self.dataset)

    @property
    def shape(self) -> Shape:
        """The shape of the images that networks are made for."""
        return Shape(self.preprocessing.channels, *self.recipe.image)

    @property
    def space(self) -> SearchSpace:
        """The space that is searched."""
        recipe = self.recipe
        system = system_recipe(
            recipe.system, recipe.data, scale="small", context=self.context, dataset=self.dataset
        )
        return system.space

    def run_folder(self, name: str) -> Path:
        """Return the run directory of a stage, or of one of its parts."""
        return Layout(self.folder).stage(name)

    def inside(self, path: str) -> Path:
        """Return a folder that files of the run name, to write to; one outside of the run directory is refused."""
        folder = Path(path)
        if not folder.resolve().is_relative_to(self.folder.resolve()):
            raise RunProblem(
                f"{self.folder} says that its network is in {folder}, outside of itself, where nothing is written. Was "
                "the folder moved, or made by somebody else? Start again in another folder."
            )
        return folder

    def paced(self, steps: int) -> int:
        """Return the planned number of steps times the pace."""
        return max(2, round(self.pace * steps))

    def seconds(self, stage: str) -> float | None:
        """Return how long a stage that trains may take, where a time was asked for."""
        if self.recipe.request.seconds is None:
            return None
        return self.pace * stage_seconds(self.recipe.effort, stage)

    def remaining(self) -> float | None:
        """Return how many seconds of the time asked for are left now."""
        return None if self.left is None else self.left - (time.monotonic() - self.began)

    def before_training(self, *, reserved: float = 0.0) -> float | None:
        """Return the seconds that may be used before training begins, where a time was asked for.

        `reserved` is a share of the time asked for that stages between this one and training need.
        """
        remaining, asked = self.remaining(), self.recipe.request.seconds
        if remaining is None or asked is None:
            return None
        return seconds_before_training(remaining, self.recipe.effort, asked=asked) - reserved * asked

    def overdue(self) -> bool:
        """Tell whether the time asked for is over."""
        remaining = self.remaining()
        return remaining is not None and remaining < 0

    def begun(self, name: str) -> bool:
        """Tell whether a run of a stage was started before."""
        return Layout(self.run_folder(name)).recipe.exists()

    def tell(self, text: str) -> None:
        """Show a message to the user."""
        self.context.tell(text)

    def time(
        self,
        models: Sequence[str | Path | Architecture],
        *,
        includes: Includes | None = None,
        target: Target | None = None,
        final: bool = False,
    ) -> list[Measurement]:
        """Time networks on the target (or another one) at the exported size, in turns; `final` ones for longer."""
        return bench(
            models,
            [target or self.recipe.request.target],
            image=self.recipe.image,
            includes=includes or self.recipe.includes,
            classes=self.classes,
            settings=self.timing(final=final),
            channels=self.preprocessing.channels,
        )

    def timed(self, network: str, model: str) -> TimedNetwork:
        """Time one network (a name or a file) that is called `network`, and how long it takes to prepare it.

        A target that chooses kernels remembers them: what counts there is how long it takes to prepare it again.
        """
        row, making = self._prepared_and_timed(model, self.timing(final=False))
        target = parse_target(self.recipe.request.target)
        if quick_form(target) != target:
            making = min(making, self._prepared_and_timed(model, timing_settings(SHORT_TIMING_SECONDS))[1])
        return TimedNetwork(
            network=network,
            median_ms=row.median_ms,
            p95_ms=row.p95_ms,
            making_seconds=round(max(making, 0.0), 2),
            min_ms=row.min_ms,
        )

    def _prepared_and_timed(self, model: str, settings: TimingSettings) -> tuple[Measurement, float]:
        """Time a network; also return the seconds before its first run."""
        begin = time.monotonic()
        (row,) = bench(
            [model],
            [self.recipe.request.target],
            image=self.recipe.image,
            includes=self.recipe.includes,
            classes=self.classes,
            settings=settings,
            channels=self.preprocessing.channels,
        )
        return row, time.monotonic() - begin - row.warm_up_seconds - row.seconds

    def timing(self, *, final: bool) -> TimingSettings:
        """Return how networks are timed."""
        return timing_settings((2 if final else 1) * self.recipe.timing_seconds)

    def carry_out(self, recipe: Recipe, name: str) -> dict[str, Json]:
        """Do a run of a stage; one that was started before continues with the recipe that it was started with."""
        placed = replace(self.context, folder=self.run_folder(name))
        if self.begun(name):
            return resume(placed.folder, trust_code=placed.trusted, context=placed)
        return carry_out(recipe, placed)

"""How to choose: problems, strategies, trials and who evaluates them. Plain data and protocols only."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from segtailor.core.codec import Json, fingerprint, to_json
from segtailor.core.cost import Cost, Objective
from segtailor.core.errors import UserError
from segtailor.core.job import Job
from segtailor.core.plan import Shape
from segtailor.core.registry import STRATEGIES as STRATEGIES  # extensions import it from here
from segtailor.core.space import Architecture, SearchSpace, fingerprint_of
from segtailor.core.task import Task

Status: TypeAlias = Literal["done", "stopped", "failed"]


class SearchProblem(UserError):
    """A search that cannot go on; the message says what was tried and which knob to turn."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One evaluation to make: all that crosses to a worker.

    `architecture` is an architecture document, `budget` the share (0..1] of a full evaluation, `evaluator` the
    evaluator's settings, and `context` what its memory knows of earlier trials. Settings that were read from a file
    are not `trusted`: a worker imports no code that they name and contacts no other machine.
    """

    id: int
    architecture: Mapping[str, Any]
    budget: float = 1.0
    seed: int = 0
    evaluator: Mapping[str, Any] = field(default_factory=dict)
    context: Mapping[str, Any] = field(default_factory=dict)
    trusted: bool = True

    def done(self, quality: float, **metrics: float) -> TrialResult:
        """Return the result of a trial that went well; a quality that is no number counts as failed."""
        if not math.isfinite(quality):
            return self.failed(f"quality is {quality}: training diverged", passing=True)
        return TrialResult(id=self.id, status="done", quality=float(quality), metrics=metrics)

    def stopped(self, quality: float, reason: str, **metrics: float) -> TrialResult:
        """Return the result of a trial that was not worth finishing; its quality so far still teaches."""
        return replace(self.done(quality, **metrics), status="stopped", reason=reason)

    def failed(self, reason: str, *, passing: bool = False) -> TrialResult:
        """Return the result of a trial that did not; `passing` where another try may go well."""
        return TrialResult(id=self.id, status="failed", reason=reason, passing=passing)


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """What a trial found: all that comes back from a worker. Quality is higher for better; failures are results.

    `stopped` is a trial that halving or its evaluator ended before its full budget. `passing` marks a failure that
    may not come again (out of memory, diverged). The driver adds the cost.
    """

    id: int
    status: Status
    quality: float | None = None
    cost: float | None = None
    seconds: float = 0.0
    reason: str | None = None
    passing: bool = False
    cached: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """An architecture that a strategy asks about, its cost, and where it comes from (for reports).

    `evaluator` are settings of the evaluator that differ for this candidate alone, by (nested) name.
    """

    architecture: Architecture
    cost: float
    origin: Mapping[str, Json] = field(default_factory=dict)
    evaluator: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A candidate with its result."""

    candidate: Candidate
    result: TrialResult

    @property
    def done(self) -> bool:
        """Whether the trial went well on its full budget."""
        return self.result.status == "done"

    @property
    def quality(self) -> float:
        """The quality; the lowest there is where the trial failed."""
        return -math.inf if self.result.quality is None else self.result.quality

    @property
    def cost(self) -> float:
        """The cost of the candidate."""
        return self.candidate.cost

    def described(self) -> dict[str, Json]:
        """Return which network it is, and how good and costly, as results of searches say it."""
        return {
            "trial": self.result.id,
            "fingerprint": fingerprint_of(self.candidate.architecture),
            "quality": self.quality,
            "cost": self.cost,
        }

    def record(self, *, seed: int) -> dict[str, Json]:
        """Return a network that was judged in full by the search itself, as the record of a trial."""
        return {
            "id": self.result.id,
            "fingerprint": fingerprint_of(self.candidate.architecture),
            "budget": 1.0,
            "seed": seed,
            "architecture": to_json(self.candidate.architecture),
            "origin": dict(self.candidate.origin),
            "result": to_json(self.result),
        }


class AskTell(Protocol):
    """The state of a trial search: a function of seed and told results, without devices or processes.

    Every batch is told in the order it was asked before the next is asked, so that the order in which workers
    finish never changes a search.
    """

    @property
    def expected(self) -> int | None:
        """The number of candidates over the whole search, as far as known."""

    def ask(self) -> Sequence[Candidate]:
        """Return the next batch; empty when the search is over."""

    def tell(self, judged: Sequence[Judged]) -> None:
        """Learn the results of the last batch."""

    def summary(self) -> Mapping[str, Json]:
        """Return what this strategy has to report besides trials and front."""


@runtime_checkable
class Keeping(Protocol):
    """A state that is expensive to compute again from the results, and is therefore saved with a search."""

    def keep(self) -> Callable[[Path], None]:
        """Return a function that writes the state, as it is now, into an empty folder."""

    def restore(self, folder: Path, judged: Sequence[Judged]) -> None:
        """Read what was written when the state had been told `judged`."""


class FingerprintedSample(Protocol):
    """What identifies one labelled image."""

    @property
    def name(self) -> str:
        """Unique within its split."""

    @property
    def fingerprint(self) -> str:
        """Changes when the content changes."""


@dataclass(frozen=True, kw_only=True)
class Halves:
    """Two disjoint parts of the training split: one to fit weights, one to judge choices. Search sees no more."""

    fit: tuple[FingerprintedSample, ...]
    judge: tuple[FingerprintedSample, ...]

    @property
    def fingerprint(self) -> str:
        """Changes when a sample, its content or its half changes."""
        return fingerprint(
            [[[item.name, item.fingerprint] for item in half] for half in (self.fit, self.judge)]
        )


class Memory(Protocol):
    """What a driver keeps of finished trials and passes to the next ones; workers keep nothing.

    It is computed from full results in the order of trial ids, so that a resumed search has the same.
    """

    @property
    def every(self) -> int:
        """How many trials get the same knowledge: with fewer it is newer, with more more can run at once."""

    def begin(self) -> Mapping[str, Json]:
        """Return what is known before the first trial."""

    def learn(self, known: Mapping[str, Json], result: TrialResult) -> Mapping[str, Json]:
        """Return what is known after one more result."""


Work: TypeAlias = Callable[[Trial, str], TrialResult]  # judges a trial on a device, in a worker


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """Who judges an architecture: `work` is a function at the top level of a module, so that workers can import it.

    It rebuilds everything from the plain `settings`, which a trial carries. `data` is the fingerprint of what it
    reads. `memory` is asked what to tell each trial, and `note` is for the user, as the search starts.
    """

    work: Work
    settings: Mapping[str, Any] = field(default_factory=dict)
    data: str = ""
    memory: Memory | None = None
    note: str = ""


class Pool(Protocol):
    """Workers that are ready."""

    @property
    def slots(self) -> int:
        """How many trials run at once."""

    def run(self, trials: Sequence[Trial]) -> Iterator[TrialResult]:
        """Evaluate trials, yielding each result once, in order of completion."""


class Executor(Protocol):
    """Where trials run. A worker that dies costs a repetition with the same seed, then a failed result."""

    def open(self, work: Work, device: str) -> AbstractContextManager[Pool]:
        """Start workers that call `work` for every trial, on `device` or others of its kind; the context ends them."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Everything a strategy may know. `limit` is the hard budget, in the unit of the cost.

    `retries` is how often a trial that ran out of memory or diverged is repeated, with the same seed. `seconds` is how
    long a search by trials may take: then it ends with what it has. `start` gives a new supernet its first weights;
    `known` are architectures of the space that are worth beginning with.
    Settings that were read from a file are not
    `trusted`: they may neither import code by name nor contact other machines.
    """

    space: SearchSpace
    cost: Cost
    objective: Objective
    task: Task
    image: Shape
    data: Halves | None = None
    evaluator: Evaluator | None = None
    executor: Executor | None = None
    device: str = "cpu"
    seed: int = 0
    limit: float | None = None
    retries: int = 2
    cache: Path | None = None
    seconds: float | None = None
    start: Callable[[Any], object] | None = None
    known: Sequence[Architecture] = ()
    trusted: bool = True

    def __post_init__(self) -> None:
        if self.limit is not None and not self.limit > 0:
            raise SearchProblem(
                f"limit: {self.limit} {self.cost.unit} is no budget; give a number above 0, or none."
            )

    def price(self, arch: Architecture) -> float:
        """Return the cost of an architecture at the problem's image size."""
        return self.cost.of(self.space.plan(arch, self.image, self.task.outputs))


class Strategy(Protocol):
    """How to choose: frozen settings. `job` creates the state."""

    def check(self, problem: Problem) -> None:
        """Raise `Unsupported` with a remedy where this strategy cannot work, before any work."""

    def job(self, problem: Problem) -> Job:
        """Return the search as a job."""

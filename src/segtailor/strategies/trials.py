"""Search by trials as a job: ask the strategy for candidates, evaluate them, tell it the results.

The state of a strategy is a function of the seed and the told results. So it is enough to save the results by trial id:
a resumed search asks again, uses the results it has, and evaluates only the others, with the same id and seed. A state
that is expensive to compute again is saved as well, as it was after the last complete batch. Finished results are also
cached by everything they depend on, so that no architecture is trained twice in the same way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from segtailor.core.atomic import write_json
from segtailor.core.codec import Json, fingerprint, from_json, read_json, to_json
from segtailor.core.errors import RunProblem, UserError
from segtailor.core.job import Step
from segtailor.core.space import Architecture, architecture_document, fingerprint_of
from segtailor.core.strategy import (
    Candidate,
    Evaluator,
    Executor,
    Judged,
    Keeping,
    Pool,
    Problem,
    SearchProblem,
    Status,
    Trial,
    TrialResult,
)
from segtailor.strategies.candidates import ArchitecturePrices
from segtailor.strategies.executors import SerialPool
from segtailor.strategies.front import pareto
from segtailor.strategies.trial_strategy import TrialStrategy, budgets, check_trials, work_name
from segtailor.training.pace import Allowance

FILE, STATE = "trials.json", "strategy"
FORMAT = 1
SAVE_SECONDS = 1.0  # trials shorter than this are not worth a checkpoint each
MAX_STATE_BYTES = 256 * 2**20  # of the saved results
MIN_DONE_TRIALS = 2  # before a search may end because its time is over


class OutOfTime(Exception):
    """The time of the search is over."""


class StateSnapshot(NamedTuple):
    """The state of a strategy after a batch: how to write it, the id of the next trial, how many were judged."""

    write: Callable[[Path], None]
    next: int
    judged: int


class TrialSearch:
    """The job of every ask/tell strategy."""

    def __init__(self, strategy: TrialStrategy, problem: Problem) -> None:
        strategy.check(problem)
        self._strategy = strategy
        self._problem = problem
        self._prices = ArchitecturePrices(problem)
        self._evaluator, self._executor = _required(problem)
        self._cache = TrialCache(self._evaluator, problem.cache)
        self._records: dict[int, dict[str, Json]] = {}
        self._unreported: list[dict[str, Json]] = []  # records that no step has carried yet
        self._reported_prices: set[str] = set()  # fingerprints whose price a step has carried
        self._saved_at = 0.0
        self._allowance = Allowance(problem.seconds)
        self._state = strategy.begin(problem, self._prices)
        self._snapshot: StateSnapshot | None = None
        self._context: Mapping[str, Json] = {}
        self._fresh = True
        self._judged: list[Judged] = []
        self._running: dict[int, Judged] = {}
        self._next = 0
        self._restore_context()

    def steps(self) -> Iterator[Step]:
        """Search; yield a progress record when a batch starts and when a trial ends."""
        if not self._fresh:
            self._state = self._strategy.begin(self._problem, self._prices)
            self._judged, self._running, self._next, self._snapshot = [], {}, 0, None
            self._restore_context()
        self._fresh = False
        self._allowance.begin()
        with self._executor.open(self._evaluator.work, self._problem.device) as pool, suppress(OutOfTime):
            while batch := self._state.ask():
                judged = yield from self._judge(pool, batch)
                self._judged += judged
                self._running = {}
                self._state.tell(judged)
                if isinstance(self._state, Keeping):
                    self._snapshot = StateSnapshot(self._state.keep(), self._next, len(self._judged))
                self._check_time()

    def save(self, folder: Path) -> None:
        """Write all results and prices, and the state of a strategy that saves one."""
        told = None
        if self._snapshot is not None:
            (folder / STATE).mkdir()
            self._snapshot.write(folder / STATE)
            judged = self._judged[: self._snapshot.judged]
            told = {
                "next": self._snapshot.next,
                "judged": [[item.result.id, item.result.status, item.result.reason] for item in judged],
            }
        document = {
            "told": told,
            "format": FORMAT,
            "seconds": self._allowance.spent,
            "prices": self._prices.known,
            "trials": [self._records[number] for number in sorted(self._records)],
        }
        write_json(folder / FILE, document, what="search state")

    def load(self, folder: Path) -> None:
        """Restore results and prices."""
        document = read_json(folder / FILE, what="search state", error=RunProblem, limit=MAX_STATE_BYTES)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise RunProblem(
                f"{folder / FILE} is no search state of format {FORMAT}; use the version that wrote it."
            )
        self._prices.known.update(document["prices"])
        self._allowance.begin(float(document.get("seconds", 0.0)))
        self.retell(document["trials"])
        if document.get("told") and isinstance(self._state, Keeping):
            told = document["told"]
            self._judged = [self._rejudged(*item) for item in told["judged"]]
            self._state.restore(folder / STATE, self._judged)
            self._snapshot = StateSnapshot(self._state.keep(), told["next"], len(self._judged))
            self._next = told["next"]
            self._restore_context()

    def retell(self, records: Iterable[Mapping[str, Json]]) -> None:
        """Take over results and prices of an earlier session: `steps` will not evaluate those trials again."""
        for record in records:
            if "prices" in record:
                self._prices.known.update(record["prices"])  # type: ignore[arg-type]
            else:
                self._records[int(record["id"])] = dict(record)  # type: ignore[arg-type]
        self._reported_prices = set(self._prices.known)

    @property
    def expected(self) -> int | None:
        """How many trials there will be, if the strategy knows."""
        return self._state.expected

    def try_trial(self, candidate: Candidate, *, budget: float) -> TrialResult:
        """Judge a candidate in this process with a share of the full budget, to time it; nothing is recorded."""
        pool = SerialPool(self._evaluator.work, self._problem.device)
        return next(pool.run([self._trial(0, candidate, budget)]))

    def preview(self) -> Sequence[Candidate]:
        """Return the first candidates with their costs; a budget that nothing meets raises here."""
        return self._strategy.begin(self._problem, self._prices).ask()

    def result(self) -> Mapping[str, Json]:
        """Return the best architecture by the objective, the front and every trial."""
        best = self._best()
        if best is None:
            raise SearchProblem(
                "the search has no finished trial yet, so there is nothing to choose from; resume it."
            )
        return {
            "architecture": architecture_document(best.candidate.architecture),
            **best.described(),
            "unit": self._problem.cost.unit,
            "front": [item.described() for item in pareto(self._all())],
            "failed": sum(item.result.status == "failed" for item in self._all()),
            "trials": [self._records[number] for number in sorted(self._records)],
            **self._state.summary(),
        }

    def _judge(self, pool: Pool, batch: Sequence[Candidate]) -> Generator[Step, None, list[Judged]]:
        """Evaluate a batch, with halving rung by rung; return it in the order asked."""
        final: dict[int, Judged] = {}
        alive = list(range(len(batch)))
        halving = self._strategy.halving
        for budget in budgets(halving, len(batch)):
            asked = [batch[index] for index in alive]
            judged = yield from self._rung(pool, asked, budget)
            final |= dict(zip(alive, judged, strict=True))
            if budget < 1 and halving is not None:
                climbers = halving.climbers(judged, self._problem.objective)
                for position, index in enumerate(alive):
                    if final[index].done and position not in climbers:
                        stopped = replace(final[index].result, status="stopped", reason="halving")
                        final[index] = replace(final[index], result=stopped)
                alive = [index for position, index in enumerate(alive) if position in climbers]
        return [final[index] for index in range(len(batch))]

    def _rung(
        self, pool: Pool, batch: Sequence[Candidate], budget: float
    ) -> Generator[Step, None, list[Judged]]:
        """Evaluate candidates at one budget; return them in the order given."""
        first, memory = self._next, self._evaluator.memory
        self._next += len(batch)
        self._running = {}
        self._forget_failed(range(first, self._next))
        size = len(batch) if memory is None else memory.every
        judged: list[Judged] = []
        for start in range(0, len(batch), size):
            part = batch[start : start + size]
            judged += yield from self._issue(pool, part, first=first + start, budget=budget)
            if memory is not None and budget == 1:
                for item in judged[start:]:
                    self._context = memory.learn(self._context, item.result)
        return judged

    def _issue(
        self, pool: Pool, batch: Sequence[Candidate], *, first: int, budget: float
    ) -> Generator[Step, None, list[Judged]]:
        """Evaluate candidates that get the same context; return them in the order given."""
        trials = [self._trial(first + index, candidate, budget) for index, candidate in enumerate(batch)]
        judged_by_id: dict[int, Judged] = {}
        pending: list[Trial] = []
        for trial, candidate in zip(trials, batch, strict=True):
            earlier = self._earlier_result(trial, candidate)
            if earlier is not None:
                judged_by_id[trial.id] = Judged(candidate=candidate, result=earlier)
                continue
            cached = self._cache.get(trial)
            if cached is None:
                pending.append(trial)
            else:
                judged_by_id[trial.id] = self._record(trial, candidate, cached)
        if budget == 1:
            self._running |= judged_by_id
        if pending:
            yield self._step(pool, waiting=len(pending), latest=None)
        left = {trial.id: trial for trial in pending}
        with closing(self._attempts(pool, pending)) as results:
            for result in results:
                trial = left.pop(result.id)
                judged = self._record(trial, batch[trial.id - first], result)
                judged_by_id[trial.id] = judged
                if budget == 1:
                    self._running[trial.id] = judged
                yield self._step(pool, waiting=len(left), latest=judged)
                self._check_time()
        return [judged_by_id[trial.id] for trial in trials]

    def _check_time(self) -> None:
        """Stop when the time is over and there is something to choose from."""
        if self._allowance.over and sum(item.done for item in self._all()) >= MIN_DONE_TRIALS:
            raise OutOfTime

    def _attempts(self, pool: Pool, trials: Sequence[Trial]) -> Generator[TrialResult, None, None]:
        """Run trials; failures that may not come again are repeated with the same seed, after the others."""
        retries = self._problem.retries
        for attempt in range(retries + 1):
            again: list[int] = []
            for result in pool.run(trials):
                if result.passing and attempt < retries:
                    again.append(result.id)
                elif result.passing and attempt:
                    yield replace(result, reason=f"{result.reason} ({attempt + 1} times)")
                else:
                    yield result
            trials = [trial for trial in trials if trial.id in again]
            if not trials:
                return

    def _trial(self, number: int, candidate: Candidate, budget: float) -> Trial:
        arch = candidate.architecture
        seed = (
            int(fingerprint({"seed": self._problem.seed, "architecture": fingerprint_of(arch)}), 16) % 2**31
        )
        return Trial(
            id=number,
            architecture=architecture_document(arch),
            budget=budget,
            seed=seed,
            evaluator=merged(self._evaluator.settings, candidate.evaluator),
            context=self._context,
            trusted=self._problem.trusted,
        )

    def _earlier_result(self, trial: Trial, candidate: Candidate) -> TrialResult | None:
        """Return the result of an earlier session for a trial, if there is one."""
        record = self._records.get(trial.id)
        if record is None:
            return None
        if (
            record["fingerprint"] != fingerprint_of(candidate.architecture)
            or record["budget"] != trial.budget
        ):
            raise RunProblem(
                f"trial {trial.id} of the saved search judged another architecture than this search asks for; the "
                "search was started with other settings or another version. Start again in another folder."
            )
        result = self._result(trial.id)
        self._cache.put(trial, result, told=True)
        return result

    def _record(self, trial: Trial, candidate: Candidate, result: TrialResult) -> Judged:
        result = replace(result, cost=candidate.cost)
        self._cache.put(trial, result)
        self._records[trial.id] = {
            "id": trial.id,
            "fingerprint": fingerprint_of(candidate.architecture),
            "budget": trial.budget,
            "seed": trial.seed,
            "architecture": trial.architecture["architecture"],
            "origin": dict(candidate.origin),
            "result": to_json(result),
        }
        self._unreported.append(self._records[trial.id])
        return Judged(candidate=candidate, result=result)

    def _forget_failed(self, numbers: range) -> None:
        """Forget a last batch in which every trial failed: it ended the search, and a resumed one tries it again."""
        results = [self._records[number]["result"] for number in numbers if number in self._records]
        last = len(self._records) == numbers.stop
        if last and all(isinstance(item, dict) and item["status"] == "failed" for item in results):
            for number in numbers:
                self._records.pop(number, None)

    def _restore_context(self) -> None:
        """Compute the context of the next trial from all results on the full budget so far."""
        memory = self._evaluator.memory
        self._context = {} if memory is None else memory.begin()
        for number in range(self._next if memory is not None else 0):
            if memory is not None and self._records[number]["budget"] == 1:
                self._context = memory.learn(self._context, self._result(number))

    def _rejudged(self, number: int, status: Status, reason: str | None) -> Judged:
        """Return a candidate of an earlier session with its result, status and reason."""
        record: dict[str, Any] = self._records[number]
        kind = self._problem.space.architecture_type
        arch: Architecture = from_json(
            kind, record["architecture"], what=f"saved trial {number}", error=RunProblem
        )
        if record["fingerprint"] != fingerprint_of(arch):
            raise RunProblem(
                f"saved trial {number} has the fingerprint of another architecture; the run is damaged. Start again in "
                "another folder."
            )
        result = replace(self._result(number), status=status, reason=reason)
        candidate = Candidate(architecture=arch, cost=record["result"]["cost"], origin=record["origin"])
        self._cache.put(self._trial(number, candidate, record["budget"]), result, told=True)
        return Judged(candidate=candidate, result=result)

    def _result(self, number: int) -> TrialResult:
        record = self._records[number]["result"]
        return from_json(TrialResult, record, what=f"saved trial {number}", error=RunProblem)

    def _step(self, pool: Pool, *, waiting: int, latest: Judged | None) -> Step:
        seconds = [item.result.seconds for item in self._all() if not item.result.cached]
        metrics = {
            "running": float(min(waiting, pool.slots)),
            "failed": float(sum(item.result.status == "failed" for item in self._all())),
            "front": float(len(pareto(self._all()))),
        }
        if latest is not None:
            metrics |= {
                "trial": float(latest.result.id),
                "cost": latest.cost,
                "seconds": latest.result.seconds,
            }
            if latest.result.quality is not None:
                metrics["quality"] = latest.result.quality
        expected = self._state.expected
        if expected is not None and seconds:
            left = max(0, expected - len(self._all()))
            metrics["seconds_left"] = left * sum(seconds) / len(seconds) / pool.slots
        best = self._best()
        now = time.monotonic()
        long_enough = latest is not None and max(latest.result.seconds, now - self._saved_at) >= SAVE_SECONDS
        due = long_enough or (latest is not None and waiting == 0)
        self._saved_at = now if due else self._saved_at
        return Step(
            phase="search",
            done=len(self._all()),
            total=expected,
            metrics=metrics,
            best={} if best is None else best.described(),
            message=latest.result.reason if latest and latest.result.status == "failed" else None,
            checkpoint=due,
            records=self._news(),
        )

    def _news(self) -> tuple[Mapping[str, Json], ...]:
        """Return prices and results that no step has carried yet; the run's journal records them."""
        prices = {key: price for key, price in self._prices.known.items() if key not in self._reported_prices}
        news = [{"prices": prices}, *self._unreported] if prices else [*self._unreported]
        self._reported_prices |= set(prices)
        self._unreported = []
        return tuple(news)  # type: ignore[arg-type]

    def _all(self) -> list[Judged]:
        return [*self._judged, *self._running.values()]

    def _best(self) -> Judged | None:
        done = [item for item in self._all() if item.done]
        score = self._problem.objective.score
        return max(done, key=lambda item: float(score(item.quality, item.cost)), default=None)


def merged(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with some of them changed; mappings are merged, other values replaced."""
    result = dict(settings)
    for name, value in changes.items():
        before = result.get(name)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        result[name] = merged(before, value) if both else value  # type: ignore[arg-type]
    return result


def _required(problem: Problem) -> tuple[Evaluator, Executor]:
    check_trials(problem)
    if problem.evaluator is None or problem.executor is None:
        raise SearchProblem("no evaluator or executor")  # check_trials has refused this already
    return problem.evaluator, problem.executor


class TrialCache:
    """Finished results by architecture, evaluator, data and budget; a folder shares them between searches."""

    def __init__(self, evaluator: Evaluator, folder: Path | None = None) -> None:
        self._evaluator = evaluator
        self._folder = folder
        self._known: dict[str, TrialResult] = {}

    def get(self, trial: Trial) -> TrialResult | None:
        """Return the result of an equal trial under this trial's id."""
        key = self._key(trial)
        result = self._known.get(key) or self._read(key)
        return replace(result, id=trial.id, cached=True) if result else None

    def put(self, trial: Trial, result: TrialResult, *, told: bool = False) -> None:
        """Keep a result; failures are not kept, because they may have outside causes.

        A result that was `told` by a run directory stays in memory: the directory may come from somebody else, and
        all searches trust the folder.
        """
        if result.status != "done":
            return
        key = self._key(trial)
        self._known[key] = result
        if self._folder is not None and not result.cached and not told:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_json(self._folder / f"{key}.json", to_json(result), what="trial cache")

    def _key(self, trial: Trial) -> str:
        return fingerprint(
            {
                "family": trial.architecture["family"],
                "architecture": trial.architecture["architecture"],
                "work": work_name(self._evaluator.work),
                "settings": dict(trial.evaluator),
                "data": self._evaluator.data,
                "budget": trial.budget,
            }
        )

    def _read(self, key: str) -> TrialResult | None:
        if self._folder is None or not (self._folder / f"{key}.json").exists():
            return None
        try:
            document = read_json(self._folder / f"{key}.json", what="trial cache")
            return from_json(TrialResult, document, what="trial cache")
        except UserError:
            return None  # damaged: the trial runs again and replaces the file

"""The timing protocol: warm up until steady, then enough runs over enough time, with networks in turns.

`time_all` returns raw samples and is used by calibration; `measure_all` adds target, machine, conditions and warnings;
`check_contract` compares a measurement with a latency limit. docs/timing.md explains the choices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

from segtailor.core.codec import Json, to_json
from segtailor.core.errors import UserError
from segtailor.core.plan import Shape
from segtailor.core.target import Includes, Target
from segtailor.targets.machine import Conditions, Machine, condition_warnings, conditions, machine
from segtailor.targets.runtime import Compiled, example_inputs
from segtailor.targets.tensorrt import TrtexecCompiled

MAX_SPREAD = 0.15  # interquartile range over median: beyond this, other programs disturbed the runs
MAX_DRIFT = 0.10  # share by which the last third of the runs may be slower than the first


@dataclass(frozen=True, kw_only=True)
class TimingSettings:
    """How long to warm up and to measure.

    A sample is the mean of enough runs in a row to last `sample_ms`, or `device_sample_ms` where runs are enqueued
    on a device: there a short sample would mostly show how long the host takes to start.
    """

    runs: int = 50
    seconds: float = 2.0
    warm_up_seconds: float = 0.3
    warm_up_limit: float = 10.0
    tolerance: float = 0.03
    window: int = 7
    block_ms: float = 100.0
    sample_ms: float = 0.2
    device_sample_ms: float = 5.0

    def __post_init__(self) -> None:
        if self.runs < 2 or self.window < 2:
            raise UserError(f"timing: runs={self.runs}, window={self.window}; both must be at least 2.")
        times = (
            self.seconds,
            self.warm_up_seconds,
            self.warm_up_limit,
            self.sample_ms,
            self.device_sample_ms,
        )
        if not all(0 <= value < 1e6 for value in times):
            raise UserError(f"timing: {times} holds a time that is negative or too large; use 0 or more.")


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Seconds per run, one value per sample, and facts about the warm-up before them."""

    times: tuple[float, ...]
    repeats: int
    warm_up_runs: int
    warm_up_seconds: float
    steady: bool

    @property
    def runs(self) -> int:
        """Number of timed runs."""
        return len(self.times) * self.repeats

    @property
    def median(self) -> float:
        """Median of the samples in seconds."""
        return median(self.times)

    @property
    def p95(self) -> float:
        """95th percentile of the samples in seconds."""
        return quantiles(self.times, n=20, method="inclusive")[-1]

    @property
    def spread(self) -> float:
        """Interquartile range over median."""
        low, _, high = quantiles(self.times, n=4, method="inclusive")
        return (high - low) / self.median

    @property
    def drift(self) -> float:
        """How much slower the last third was than the first, as a share."""
        third = max(1, len(self.times) // 3)
        return median(self.times[-third:]) / median(self.times[:third]) - 1


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One latency together with the conditions under which it was measured."""

    network: str
    target: str
    runtime: str
    precision: str
    inputs: tuple[Shape, ...]
    includes: Includes
    machine: Machine
    median_ms: float
    p95_ms: float
    min_ms: float
    spread: float
    runs: int
    repeats: int
    seconds: float
    warm_up_runs: int
    warm_up_seconds: float
    steady: bool
    threads: int | None
    before: Conditions
    after: Conditions
    warnings: tuple[str, ...] = field(default=())
    notes: tuple[str, ...] = field(default=())

    @property
    def fps(self) -> float:
        """Images per second, one after the other."""
        return 1000 / self.median_ms

    def document(self) -> dict[str, Json]:
        """Return plain JSON data, with `fps`."""
        return {**to_json(self), "fps": self.fps}


@dataclass(frozen=True, kw_only=True)
class BenchEntry:
    """A compiled network to be measured, with its name and what its time includes."""

    network: str
    target: Target
    inputs: tuple[Shape, ...]
    compiled: Compiled
    includes: Includes = "network"


def measure(entry: BenchEntry, settings: TimingSettings | None = None) -> Measurement:
    """Measure one network."""
    return measure_all([entry], settings)[0]


def measure_all(entries: Sequence[BenchEntry], settings: TimingSettings | None = None) -> list[Measurement]:
    """Measure networks in turns, so that a disturbance of the machine affects all of them equally."""
    devices = [entry.target.device for entry in entries]
    gpu = next((device for device in devices if device.startswith("cuda")), None)
    before = conditions(gpu)
    samples = time_all([_stopwatch(entry) for entry in entries], settings)
    after = conditions(gpu)
    here = machine()
    return [
        _measurement(entry, taken, before=before, after=after, here=here)
        for entry, taken in zip(entries, samples, strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
class ContractResult:
    """Whether a measured network keeps its latency limit. The 95th percentile counts, not the median."""

    target: str
    includes: str
    limit_ms: float
    p95_ms: float

    @property
    def met(self) -> bool:
        """Whether the limit is kept."""
        return self.p95_ms <= self.limit_ms

    def __str__(self) -> str:
        verdict = "keeps" if self.met else "MISSES"
        share = self.p95_ms / self.limit_ms
        return (
            f"{self.target} {verdict} the limit of {self.limit_ms:g} ms: "
            f"95 % of runs take at most {self.p95_ms:.3f} ms ({share:.0%} of it; {self.includes})"
        )


def check_contract(measurement: Measurement, limit_ms: float) -> ContractResult:
    """Compare a measurement with a latency limit in milliseconds."""
    if not limit_ms > 0:
        raise UserError(f"a latency limit of {limit_ms} ms cannot be kept; give a positive one, e.g. 12ms.")
    return ContractResult(
        target=measurement.target,
        includes=measurement.includes,
        limit_ms=limit_ms,
        p95_ms=measurement.p95_ms,
    )


def time_all(watches: Sequence[Stopwatch], settings: TimingSettings | None = None) -> list[Samples]:
    """Warm up each, then sample all in turns, a block of `block_ms` at a time, until each has enough."""
    chosen = settings or TimingSettings()
    runners = [_Runner(watch, chosen) for watch in watches]
    for runner in runners:
        runner.warm_up()
    while not all(runner.done for runner in runners):
        for runner in runners:
            if not runner.done:
                runner.block(resume=len(runners) > 1)
    return [runner.samples() for runner in runners]


class Stopwatch:
    """Times runs of a compiled network on the host's clock; `step` replaces its `run`."""

    def __init__(self, compiled: Compiled, step: Callable[[], object] | None = None) -> None:
        self.compiled = compiled
        self.step = step or compiled.run

    def sample(self, repeats: int) -> float:
        """Return seconds per run, over `repeats` runs in a row."""
        step = self.step
        start = time.perf_counter()
        for _ in range(repeats):
            step()
        self.compiled.synchronise()
        return (time.perf_counter() - start) / repeats


class EventStopwatch(Stopwatch):
    """Times runs on a CUDA device by events, so that delays of the host do not count."""

    def __init__(self, compiled: Compiled, device: str) -> None:
        super().__init__(compiled)
        import torch

        self._stream = torch.cuda.current_stream(torch.device(device))
        event: Any = torch.cuda.Event
        self._start, self._end = event(enable_timing=True), event(enable_timing=True)

    def sample(self, repeats: int) -> float:
        """Return seconds per run, over `repeats` runs in a row."""
        self._start.record(self._stream)
        for _ in range(repeats):
            self.step()
        self._end.record(self._stream)
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) / 1000 / repeats


class ReportedStopwatch(Stopwatch):
    """Returns times that the command of a runtime measured."""

    def __init__(self, compiled: TrtexecCompiled) -> None:
        super().__init__(compiled)
        self._next = compiled.next_seconds

    def sample(self, repeats: int) -> float:
        """Return seconds per run, over the next `repeats` runs."""
        return sum(self._next() for _ in range(repeats)) / repeats


def stopwatch(compiled: Compiled, device: str) -> Stopwatch:
    """Return the stopwatch for `compiled.run` on a device."""
    if isinstance(compiled, TrtexecCompiled):
        return ReportedStopwatch(compiled)
    return EventStopwatch(compiled, device) if compiled.asynchronous else Stopwatch(compiled)


class _Runner:
    """The state of one network while it is timed."""

    def __init__(self, watch: Stopwatch, settings: TimingSettings) -> None:
        self.watch, self.settings = watch, settings
        self.repeats = 1
        self.times: list[float] = []
        self.spent = 0.0
        self.warm_up_runs, self.warm_up_seconds, self.steady = 0, 0.0, False

    def warm_up(self) -> None:
        """Run until the medians of two successive windows agree, or the limit is reached."""
        chosen, recent, start = self.settings, list[float](), time.perf_counter()
        with self.watch.compiled.prepared():
            first = min(self.watch.sample(1) for _ in range(3))
            sample_ms = chosen.device_sample_ms if self.watch.compiled.asynchronous else chosen.sample_ms
            self.repeats = max(1, min(10_000, round(sample_ms / 1000 / max(first, 1e-9))))
            while not self.steady and self.warm_up_seconds < chosen.warm_up_limit:
                recent.append(self.watch.sample(self.repeats))
                self.warm_up_seconds = time.perf_counter() - start
                late, early = recent[-chosen.window :], recent[-2 * chosen.window : -chosen.window]
                self.steady = (
                    self.warm_up_seconds >= chosen.warm_up_seconds
                    and len(early) == chosen.window
                    and abs(median(late) / median(early) - 1) <= chosen.tolerance
                )
        self.warm_up_runs = 3 + len(recent) * self.repeats

    def block(self, *, resume: bool) -> None:
        """Sample for `block_ms`; first drop two samples if another network ran in between."""
        with self.watch.compiled.prepared():
            for _ in range(2 if resume else 0):
                self.watch.sample(self.repeats)
            spent = 0.0
            while not self.done:
                self.times.append(self.watch.sample(self.repeats))
                spent += self.times[-1] * self.repeats
                self.spent += self.times[-1] * self.repeats
                if spent >= self.settings.block_ms / 1000:
                    break

    @property
    def done(self) -> bool:
        """Whether there are enough samples over enough time."""
        return len(self.times) >= self.settings.runs and self.spent >= self.settings.seconds

    def samples(self) -> Samples:
        """Return what was measured."""
        return Samples(
            times=tuple(self.times),
            repeats=self.repeats,
            warm_up_runs=self.warm_up_runs,
            warm_up_seconds=self.warm_up_seconds,
            steady=self.steady,
        )


def _stopwatch(entry: BenchEntry) -> Stopwatch:
    if entry.includes != "end-to-end":
        return stopwatch(entry.compiled, entry.target.device)
    (image,) = example_inputs(entry.inputs, pixels=True)
    return Stopwatch(entry.compiled, lambda: entry.compiled.outputs(image))


def _measurement(
    entry: BenchEntry, taken: Samples, *, before: Conditions, after: Conditions, here: Machine
) -> Measurement:
    return Measurement(
        network=entry.network,
        target=str(entry.target),
        runtime=entry.target.runtime,
        precision=entry.target.precision,
        inputs=entry.inputs,
        includes=entry.includes,
        machine=here,
        median_ms=1000 * taken.median,
        p95_ms=1000 * taken.p95,
        min_ms=1000 * min(taken.times),
        spread=taken.spread,
        runs=taken.runs,
        repeats=taken.repeats,
        seconds=sum(taken.times) * taken.repeats,
        warm_up_runs=taken.warm_up_runs,
        warm_up_seconds=taken.warm_up_seconds,
        steady=taken.steady,
        threads=entry.compiled.threads,
        before=before,
        after=after,
        warnings=(*_sample_warnings(taken), *condition_warnings(before, after)),
        notes=entry.compiled.notes,
    )


def _sample_warnings(taken: Samples) -> list[str]:
    warnings = []
    if not taken.steady:
        warnings.append(f"the time was not steady after {taken.warm_up_seconds:.1f} s of warm-up")
    if taken.spread > MAX_SPREAD:
        warnings.append(
            f"the runs are noisy: their middle half spreads over {taken.spread:.0%} of the median"
        )
    if taken.drift > MAX_DRIFT:
        warnings.append(f"it became {taken.drift:.0%} slower while measured: throttling, or other work")
    return warnings

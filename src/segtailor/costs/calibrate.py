"""Calibration: a job that times the operator calls of a space on a target, then whole networks to check their sums.

A small reference workload is timed before and after each group, so that disturbed groups are noticed and repeated.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from torch import nn

from segtailor.core.atomic import write_json
from segtailor.core.codec import Json, from_json, read_json, to_json
from segtailor.core.errors import RunProblem, Unsupported, UserError
from segtailor.core.job import Step
from segtailor.core.plan import OpCall, Shape
from segtailor.core.space import Architecture, SearchSpace
from segtailor.core.target import Target
from segtailor.costs.assembly import CalibrationSubject, Evidence, WholeNetworkTime, assemble
from segtailor.costs.entries import MIN_MEASURED, most_used_per_group, rank_calls
from segtailor.costs.keys import call_of, key_of
from segtailor.costs.measured import distinct_architectures, time_networks
from segtailor.costs.pack import Entry, Pack
from segtailor.costs.timers import STATISTIC, fastest_seconds, timer_for
from segtailor.targets.machine import condition_warnings, conditions, machine
from segtailor.targets.runtime import check_sizes, compile_network, runtime_for
from segtailor.targets.timing import TimingSettings, stopwatch, time_all
from segtailor.training.pace import Allowance

STATE_FILE = "calibration.json"

# Shares of the time limit, from its start: operators, then disturbed operators once more, then whole networks.
OPERATORS_UNTIL_SHARE, REPEATS_UNTIL_SHARE = 0.6, 0.7
FIT_TIME_SHARE = 0.3  # of the time for whole networks; the rest is for those of the trust report
WAITING_SHARE = 0.1  # of the time limit that may be spent waiting until the machine is idle
MAX_WAITING_SECONDS = 60.0

NETWORKS_PER_GROUP = 5  # timed in turns
FIRST_OPERATORS, FIRST_NETWORKS = 8, 2  # size of the first groups, which show how long the others will take
MIN_NETWORKS = 2  # to fit, and to check
MAX_MEAN_ERROR = 0.25  # of prices, relative: a pack with a larger one warns

THOROUGH_MINUTES = 20.0  # with at least so much time, networks are timed thoroughly
QUICK = TimingSettings(runs=20, seconds=0.5, warm_up_seconds=0.1, warm_up_limit=0.5)
THOROUGH = TimingSettings(seconds=2.0, warm_up_limit=2.0)

# The reference: a few convolutions that are timed again and again, to notice when other programs slow the machine down.
REFERENCE_CHANNELS, REFERENCE_SIDE_PIXELS, REFERENCE_LAYERS = 16, 64, 4
REFERENCE_TIMING = TimingSettings(runs=10, seconds=0.1, warm_up_seconds=0.02, warm_up_limit=0.1, window=2)
SLOW_FACTOR = 1.25  # times the fastest reference time: a slower one means that other programs are running


@dataclass(frozen=True, kw_only=True)
class CalibrationSettings:
    """What to calibrate and for how long. `minutes` limits everything: operators and whole networks.

    However short the time is, three operators of every group and four networks are timed.
    """

    target: Target
    image: tuple[int, int]
    classes: int = 19
    minutes: float | None = None
    seconds_per_entry: float = 0.15
    fit_networks: int = 10
    trust_networks: int = 30
    seed: int = 0
    whole: TimingSettings | None = None

    def __post_init__(self) -> None:
        if self.minutes is not None and not 0 < self.minutes <= 10_000:
            raise UserError(
                f"minutes={self.minutes:g}; choose more than 0 (or leave it out to time everything)."
            )
        if self.classes < 1:
            raise UserError(f"classes={self.classes}; a network needs at least 1 output channel.")
        if self.fit_networks < MIN_NETWORKS or self.trust_networks < MIN_NETWORKS:
            raise UserError(
                "calibration needs at least 2 networks to fit and 2 to check; 10 and 30 are usual."
            )

    @property
    def seconds(self) -> float:
        """Time limit of everything."""
        return math.inf if self.minutes is None else 60 * self.minutes

    @property
    def timing(self) -> TimingSettings:
        """Timing settings of whole networks."""
        return self.whole or (QUICK if self.seconds < 60 * THOROUGH_MINUTES else THOROUGH)


class Calibration:
    """Times the most used entries first, stops at the time limit, and can be resumed."""

    def __init__(
        self, space: SearchSpace, settings: CalibrationSettings, *, examples: Iterable[Architecture] = ()
    ) -> None:
        self.space, self.settings = space, settings
        self.subject = CalibrationSubject(
            space=space, image=settings.image, classes=settings.classes, target=str(settings.target)
        )
        check_sizes([self.subject.shape])
        runtime_for(settings.target)  # raises if the target cannot be used here
        if settings.target.precision == "int8":
            raise Unsupported(
                f"calibrate: {settings.target}: the time of an operator in int8 depends on what its neighbours are "
                f"rounded to, so a table of single operators says little. Calibrate {settings.target.unrounded}, or "
                "price whole networks in int8 with the cost `fitted`."
            )
        self._timer = timer_for(settings.target)
        self._examples = tuple(examples)
        self._measured: dict[OpCall, Entry] = {}
        self._whole: dict[str, list[WholeNetworkTime]] = {"fit": [], "trust": []}
        self._spent = Allowance(settings.seconds)
        self._before = conditions()
        self._ranked: list[OpCall] | None = None
        self._reference = ReferenceTimer()
        self._waited = 0.0
        self._reference_times: list[float] = []  # in seconds, one for each group of measurements that counts

    @property
    def calls(self) -> list[OpCall]:
        """Every entry of the space, in the order of measuring."""
        if self._ranked is None:
            self._ranked = rank_calls(
                self.space,
                self.subject.shape,
                self.settings.classes,
                examples=self._examples,
                seed=self.settings.seed,
            )
        return self._ranked

    def steps(self) -> Iterator[Step]:
        """Time operators, then networks for the correction, then networks for the trust report."""
        self._spent.begin()
        self._reference = reference_for(self.settings.target)
        yield from self._time_operators()
        # One iterator for both phases, so that no network is both fitted on and checked on.
        networks = distinct_architectures(self.space, seed=self.settings.seed)
        yield from self._time_networks("fit", networks, self.settings.fit_networks, share=FIT_TIME_SHARE)
        yield from self._time_networks("trust", networks, self.settings.trust_networks, share=1.0)

    def _time_operators(self) -> Iterator[Step]:
        """Time one chunk after the other; then repeat those that were disturbed, while there is time."""
        pending = [call for call in self.calls if call not in self._measured]
        needed = len(most_used_per_group(self.calls, MIN_MEASURED))
        size = min(FIRST_OPERATORS, self._timer.chunk)
        chunks: list[tuple[list[OpCall], float]] = []
        until = OPERATORS_UNTIL_SHARE * self.settings.seconds
        while pending and (self._spent.spent < until or len(self._measured) < needed):
            chunk, pending = pending[:size], pending[size:]
            begin = self._spent.spent
            chunks.append((chunk, self._time_chunk(chunk)))
            yield self._operator_step()
            each = (self._spent.spent - begin) / len(chunk)
            left = max(until - self._spent.spent, 0.0)
            size = min(self._timer.chunk, max(1, int(min(left / each, self._timer.chunk))))
        for chunk, reference_seconds in chunks:
            if (
                self._reference.is_slow(reference_seconds)
                and self._spent.spent < REPEATS_UNTIL_SHARE * self.settings.seconds
            ):
                reference_seconds = self._time_chunk(chunk)
                yield self._operator_step()
            self._reference_times.append(reference_seconds)

    def _time_chunk(self, chunk: Sequence[OpCall]) -> float:
        """Time operators, if possible while the machine is idle; return the slower reference time around them."""
        self._wait()
        before = self._reference.measure()
        for call, entry in zip(
            chunk, self._timer.time(chunk, seconds=self.settings.seconds_per_entry), strict=True
        ):
            known = self._measured.get(call)
            self._measured[call] = entry if known is None or entry.us < known.us else known
        return max(before, self._reference.measure())

    def _operator_step(self) -> Step:
        return Step(
            phase="operators",
            done=len(self._measured),
            total=len(self.calls),
            metrics={"minutes": self._spent.spent / 60},
            checkpoint=True,
        )

    def _time_networks(
        self, phase: str, networks: Iterator[Architecture], wanted: int, *, share: float
    ) -> Iterator[Step]:
        """Time the wanted number of networks, or as many as fit into a share of the remaining time."""
        records = self._whole[phase]
        list(islice(networks, len(records)))  # those of an earlier session
        begin = self._spent.spent
        until = begin + share * max(self.settings.seconds - begin, 0.0)
        size = FIRST_NETWORKS
        while len(records) < wanted and (len(records) < MIN_NETWORKS or self._spent.spent < until):
            group = list(islice(networks, min(size, wanted - len(records))))
            if not group:
                return
            begin = self._spent.spent
            records += self._time_group(group)
            yield Step(phase=phase, done=len(records), total=wanted, checkpoint=True)
            each = (self._spent.spent - begin) / len(group)
            left = max(until - self._spent.spent, 0.0)
            size = min(NETWORKS_PER_GROUP, int(min(left / each, NETWORKS_PER_GROUP)))
            if size == 0 and len(records) >= MIN_NETWORKS:
                return
            size = max(size, 1)

    def _time_group(self, group: Sequence[Architecture]) -> list[WholeNetworkTime]:
        self._wait()
        before = self._reference.measure()
        plans = [self.space.plan(arch, self.subject.shape, self.settings.classes) for arch in group]
        taken = time_networks(plans, self.settings.target, settings=self.settings.timing)
        self._reference_times.append(max(before, self._reference.measure()))
        return [
            WholeNetworkTime(picks=self.space.picks(arch), low_ms=low_ms, median_ms=median_ms)
            for arch, (low_ms, median_ms) in zip(group, taken, strict=True)
        ]

    def _wait(self) -> None:
        """Wait until the machine is idle, if it is busy now and was not before."""
        allowed = min(WAITING_SHARE * self.settings.seconds, MAX_WAITING_SECONDS) - self._waited
        if allowed > 0:
            self._waited += self._reference.wait(allowed)

    def save(self, folder: Path) -> None:
        """Write the measurements so far."""
        document = {
            "header": self._header(),
            "spent_s": self._spent.spent,
            "entries": {key_of(call): to_json(entry) for call, entry in self._measured.items()},
            "whole": {
                phase: [to_json(record) for record in records] for phase, records in self._whole.items()
            },
        }
        write_json(folder / STATE_FILE, document, what="state of the calibration")

    def load(self, folder: Path) -> None:
        """Continue from what `save` wrote; the state of another calibration is refused."""
        path = folder / STATE_FILE
        document = read_json(path, what="state of a calibration", error=RunProblem, limit=2**26)
        header = document.get("header") if isinstance(document, dict) else None
        if header != self._header():
            raise RunProblem(
                f"{path} is of another calibration: {header}, not {self._header()}. Use another folder."
            )
        state = from_json(_State, document, what=str(path), error=RunProblem)
        self._spent.begin(state.spent_s)
        self._measured = {call_of(key): entry for key, entry in state.entries.items()}
        self._whole = {phase: list(records) for phase, records in state.whole.items()}

    def result(self) -> Mapping[str, Json]:
        """Return the summary of the pack."""
        return self.pack().summary()

    def pack(self) -> Pack:
        """Return the device pack of what was measured so far."""
        evidence = Evidence(
            measured=self._measured, fit=tuple(self._whole["fit"]), trust=tuple(self._whole["trust"])
        )
        after = conditions()
        facts = {
            "method": self._timer.method,
            "statistic": STATISTIC,
            "seconds_per_entry": self.settings.seconds_per_entry,
            "before": to_json(self._before),
            "after": to_json(after),
        }
        pack = assemble(self.subject, evidence, self.calls, machine=to_json(machine()), conditions=facts)
        warnings = [*self._disturbances(), *condition_warnings(self._before, after), *untrusted(pack)]
        return replace(pack, conditions={**pack.conditions, "warnings": warnings})

    def _disturbances(self) -> list[str]:
        """Return a warning that tells how often, and how much, the reference was slower than its fastest time."""
        slow = [seconds for seconds in self._reference_times if self._reference.is_slow(seconds)]
        if not slow:
            return []
        return [
            f"the machine was busy during {len(slow)} of {len(self._reference_times)} groups of measurements: "
            f"the same work took up to {max(slow) / self._reference.fastest:.1f} times as long. "
            "Prices may be too high; stop other programs and calibrate again"
        ]

    def _header(self) -> dict[str, Json]:
        return {**self.subject.header(), "seed": self.settings.seed, "machine": machine().fingerprint}


@dataclass(frozen=True, kw_only=True)
class _State:
    header: Mapping[str, Any]
    spent_s: float
    entries: Mapping[str, Entry]
    whole: Mapping[str, tuple[WholeNetworkTime, ...]]


def untrusted(pack: Pack) -> list[str]:
    """Return a warning if prices differ much from the times of whole networks."""
    if pack.trust is None or pack.trust.mape <= MAX_MEAN_ERROR:
        return []
    return [
        f"prices differ from the times of whole networks by {pack.trust.mape:.0%} on average; calibrate again, "
        "on a quiet machine or with more --minutes"
    ]


class ReferenceTimer:
    """Times the reference workload and remembers its fastest time; `run` returns seconds, None means no reference."""

    def __init__(self, run: Callable[[], float] | None = None) -> None:
        self.fastest = math.inf
        self._run = run

    def measure(self) -> float:
        """Return the seconds that the reference takes now; without a reference the machine always seems idle."""
        if self._run is None:
            return self.fastest
        seconds = self._run()
        self.fastest = min(self.fastest, seconds)
        return seconds

    def is_slow(self, seconds: float) -> bool:
        """Tell whether a reference time is much longer than the fastest one."""
        return math.isfinite(self.fastest) and seconds > SLOW_FACTOR * self.fastest

    def wait(self, seconds: float) -> float:
        """Wait until the reference is not slow, at most `seconds`; return how long it took."""
        begin = time.monotonic()
        while self.is_slow(self.measure()) and time.monotonic() - begin < seconds:
            time.sleep(0.5)
        return time.monotonic() - begin


def reference_for(target: Target) -> ReferenceTimer:
    """Return the reference of a CPU target: a few convolutions. Other devices are not shared and have none."""
    if target.device != "cpu":
        return ReferenceTimer()
    layers = [
        layer
        for _ in range(REFERENCE_LAYERS)
        for layer in (nn.Conv2d(REFERENCE_CHANNELS, REFERENCE_CHANNELS, 3, padding=1), nn.ReLU())
    ]
    compiled = compile_network(
        nn.Sequential(*layers).eval(),
        target,
        (Shape(REFERENCE_CHANNELS, REFERENCE_SIDE_PIXELS, REFERENCE_SIDE_PIXELS),),
    )

    def run() -> float:
        (taken,) = time_all([stopwatch(compiled, target.device)], REFERENCE_TIMING)
        return fastest_seconds(taken)

    return ReferenceTimer(run)

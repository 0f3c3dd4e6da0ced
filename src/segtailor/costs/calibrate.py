"""Calibration: a job that times every operator call of a space on a target, then checks the sum on whole networks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from segtailor.core.atomic import write_json
from segtailor.core.codec import Json, from_json, read_json, to_json
from segtailor.core.errors import RunProblem, UserError
from segtailor.core.job import Step
from segtailor.core.plan import OpCall
from segtailor.core.space import Architecture, SearchSpace
from segtailor.core.target import Target
from segtailor.costs.assembly import CalibrationSubject, Evidence, WholeNetworkTime, assemble
from segtailor.costs.estimate import FEWEST as FEWEST_OPERATORS
from segtailor.costs.keys import call_of, key_of
from segtailor.costs.pack import Entry, Pack
from segtailor.costs.reference import Reference, reference_for
from segtailor.costs.timers import STATISTIC, timer_for
from segtailor.costs.usage import leaders, ranked_calls
from segtailor.costs.whole import different, time_networks
from segtailor.targets.machine import condition_warnings, conditions, machine
from segtailor.targets.runtime import check_sizes, runtime_for
from segtailor.targets.timing import TimingSettings
from segtailor.training.pace import Allowance


@dataclass(frozen=True, kw_only=True)
class _State:
    header: Mapping[str, Any]
    spent_s: float
    entries: Mapping[str, Entry]
    whole: Mapping[str, tuple[WholeNetworkTime, ...]]


STATE = "calibration.json"
GROUP = 5  # whole networks timed in turns
FIRST_CHUNK, FIRST_GROUP = 8, 2  # operators and networks that show how long the others will take
OPERATORS_UNTIL, REPEATS_UNTIL = 0.6, 0.7  # of the time; what is left is for whole networks
FIT_SHARE = 0.3  # of those networks; the others check
FEWEST_NETWORKS = 2  # to fit, and to check
WAITING = 0.1  # of the time may be spent on waiting for a quiet moment
WAITING_SECONDS = 60.0  # where no time is given
UNTRUSTED = 0.25  # mean error of prices beyond which a pack warns
QUICK = TimingSettings(runs=20, seconds=0.5, warm_up_seconds=0.1, warm_up_limit=0.5)
THOROUGH = TimingSettings(seconds=2.0, warm_up_limit=2.0)
THOROUGH_MINUTES = 20.0  # from which networks are timed thoroughly


@dataclass(frozen=True, kw_only=True)
class CalibrationSettings:
    """What to calibrate and for how long. `minutes` bounds everything: operators, and whole networks.

    However short it is, three operators of every kind and four networks are timed.
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
        if self.fit_networks < FEWEST_NETWORKS or self.trust_networks < FEWEST_NETWORKS:
            raise UserError(
                "calibration needs at least 2 networks to fit and 2 to check; 10 and 30 are usual."
            )

    @property
    def seconds(self) -> float:
        """How long everything may take."""
        return math.inf if self.minutes is None else 60 * self.minutes

    @property
    def timing(self) -> TimingSettings:
        """How whole networks are timed."""
        return self.whole or (QUICK if self.seconds < 60 * THOROUGH_MINUTES else THOROUGH)


class Calibration:
    """Times entries most used first; stops at the time limit; resumes where it was."""

    def __init__(
        self, space: SearchSpace, settings: CalibrationSettings, *, examples: Iterable[Architecture] = ()
    ) -> None:
        self.space, self.settings = space, settings
        self.subject = CalibrationSubject(
            space=space, image=settings.image, classes=settings.classes, target=str(settings.target)
        )
        check_sizes([self.subject.shape])
        runtime_for(settings.target)  # raises if the target cannot be used here
        self._timer = timer_for(settings.target)
        self._examples = tuple(examples)
        self._measured: dict[OpCall, Entry] = {}
        self._whole: dict[str, list[WholeNetworkTime]] = {"fit": [], "trust": []}
        self._spent = Allowance(settings.seconds)
        self._before = conditions()
        self._ranked: list[OpCall] | None = None
        self._reference = Reference()
        self._waited = 0.0
        self._looks: list[float] = []  # at the reference, one for each group of measurements that counts

    @property
    def calls(self) -> list[OpCall]:
        """Every entry of the space, in the order of timing."""
        if self._ranked is None:
            self._ranked = ranked_calls(
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
        networks = different(self.space, seed=self.settings.seed)  # fitted on and checked on: never the same
        yield from self._time_networks("fit", networks, self.settings.fit_networks, share=FIT_SHARE)
        yield from self._time_networks("trust", networks, self.settings.trust_networks, share=1.0)

    def _time_operators(self) -> Iterator[Step]:
        """Time one chunk after the other; those that were disturbed once more, as long as there is time."""
        pending = [call for call in self.calls if call not in self._measured]
        needed, size = len(leaders(self.calls, FEWEST_OPERATORS)), min(FIRST_CHUNK, self._timer.chunk)
        chunks: list[tuple[list[OpCall], float]] = []
        until = OPERATORS_UNTIL * self.settings.seconds
        while pending and (self._spent.spent < until or len(self._measured) < needed):
            chunk, pending = pending[:size], pending[size:]
            begin = self._spent.spent
            chunks.append((chunk, self._time_chunk(chunk)))
            yield self._operator_step()
            each = (self._spent.spent - begin) / len(chunk)
            left = max(until - self._spent.spent, 0.0)
            size = min(self._timer.chunk, max(1, int(min(left / each, self._timer.chunk))))
        for chunk, look in chunks:
            if self._reference.slow(look) and self._spent.spent < REPEATS_UNTIL * self.settings.seconds:
                look = self._time_chunk(chunk)
                yield self._operator_step()
            self._looks.append(look)

    def _time_chunk(self, chunk: Sequence[OpCall]) -> float:
        """Time operators in a quiet moment, if one comes; return the slower look at the reference around them."""
        self._wait()
        before = self._reference.look()
        for call, entry in zip(
            chunk, self._timer.time(chunk, seconds=self.settings.seconds_per_entry), strict=True
        ):
            known = self._measured.get(call)
            self._measured[call] = entry if known is None or entry.us < known.us else known
        return max(before, self._reference.look())

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
        """Time as many networks as are wanted and fit into a share of the time that is left."""
        records = self._whole[phase]
        list(islice(networks, len(records)))  # those of an earlier session
        begin = self._spent.spent
        until = begin + share * max(self.settings.seconds - begin, 0.0)
        size = FIRST_GROUP
        while len(records) < wanted and (len(records) < FEWEST_NETWORKS or self._spent.spent < until):
            group = list(islice(networks, min(size, wanted - len(records))))
            if not group:
                return
            begin = self._spent.spent
            records += self._time_group(group)
            yield Step(phase=phase, done=len(records), total=wanted, checkpoint=True)
            each = (self._spent.spent - begin) / len(group)
            left = max(until - self._spent.spent, 0.0)
            size = min(GROUP, int(min(left / each, GROUP)))
            if size == 0 and len(records) >= FEWEST_NETWORKS:
                return
            size = max(size, 1)

    def _time_group(self, group: Sequence[Architecture]) -> list[WholeNetworkTime]:
        self._wait()
        before = self._reference.look()
        plans = [self.space.plan(arch, self.subject.shape, self.settings.classes) for arch in group]
        taken = time_networks(plans, self.settings.target, settings=self.settings.timing)
        self._looks.append(max(before, self._reference.look()))
        return [
            WholeNetworkTime(picks=self.space.picks(arch), low_ms=low_ms, median_ms=median_ms)
            for arch, (low_ms, median_ms) in zip(group, taken, strict=True)
        ]

    def _wait(self) -> None:
        """Wait for a quiet moment where the machine is busy now and was not before."""
        allowed = min(WAITING * self.settings.seconds, WAITING_SECONDS) - self._waited
        if allowed > 0:
            self._waited += self._reference.wait(allowed)

    def save(self, folder: Path) -> None:
        """Write what was measured."""
        document = {
            "header": self._header(),
            "spent_s": self._spent.spent,
            "entries": {key_of(call): to_json(entry) for call, entry in self._measured.items()},
            "whole": {phase: [to_json(record) for record in found] for phase, found in self._whole.items()},
        }
        write_json(folder / STATE, document, what="state of the calibration")

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote; a state of another calibration is refused."""
        path = folder / STATE
        document = read_json(path, what="state of a calibration", error=RunProblem, limit=2**26)
        header = document.get("header") if isinstance(document, dict) else None
        if header != self._header():
            raise RunProblem(
                f"{path} is of another calibration: {header}, not {self._header()}. Use another folder."
            )
        state = from_json(_State, document, what=str(path), error=RunProblem)
        self._spent.begin(state.spent_s)
        self._measured = {call_of(key): entry for key, entry in state.entries.items()}
        self._whole = {phase: list(found) for phase, found in state.whole.items()}

    def result(self) -> Mapping[str, Json]:
        """Return the figures of the trust report."""
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
        found = [*self._disturbances(), *condition_warnings(self._before, after), *untrusted(pack)]
        return replace(pack, conditions={**pack.conditions, "warnings": found})

    def _disturbances(self) -> list[str]:
        """Say how often, and how much, the reference was slower than at its best."""
        slow = [look for look in self._looks if self._reference.slow(look)]
        if not slow:
            return []
        return [
            f"the machine was busy during {len(slow)} of {len(self._looks)} groups of measurements: the same work took "
            f"up to {max(slow) / self._reference.best:.1f} times as long. Prices may be too high; stop other programs "
            "and calibrate again"
        ]

    def _header(self) -> dict[str, Json]:
        return {**self.subject.header(), "seed": self.settings.seed, "machine": machine().fingerprint}


def untrusted(pack: Pack) -> list[str]:
    """Say that prices are far from what whole networks take, where that is so."""
    if pack.trust is None or pack.trust.mape <= UNTRUSTED:
        return []
    return [
        f"prices differ from the times of whole networks by {pack.trust.mape:.0%} on average; calibrate again, "
        "on a quiet machine or with more --minutes"
    ]

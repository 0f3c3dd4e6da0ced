"""Calibration: a job that times every operator call of a space on a target, then checks the sum on whole networks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
from segtailor.costs.assembly import Evidence, Subject, Whole, assemble
from segtailor.costs.keys import call_of, key_of
from segtailor.costs.pack import Entry, Pack
from segtailor.costs.timers import STATISTIC, timer_for
from segtailor.costs.usage import leaders, ranked_calls
from segtailor.costs.whole import different, time_networks
from segtailor.targets.conditions import conditions
from segtailor.targets.fingerprint import machine
from segtailor.targets.runtime import check_sizes, runtime_for
from segtailor.targets.timing import TimingSettings


@dataclass(frozen=True, kw_only=True)
class _State:
    header: Mapping[str, Any]
    spent_s: float
    entries: Mapping[str, Entry]
    whole: Mapping[str, tuple[Whole, ...]]


STATE = "calibration.json"
GROUP = 5  # whole networks timed in turns


@dataclass(frozen=True, kw_only=True)
class CalibrationSettings:
    """What to calibrate and for how long. `minutes` bounds the timing of operators.

    A few of every kind are timed in any case, and whole networks come on top.
    """

    target: Target
    image: tuple[int, int]
    classes: int = 19
    minutes: float | None = None
    seconds_per_entry: float = 0.15
    fit_networks: int = 10
    trust_networks: int = 30
    seed: int = 0
    whole: TimingSettings = field(default_factory=lambda: TimingSettings(seconds=2.0, warm_up_limit=2.0))

    def __post_init__(self) -> None:
        if self.minutes is not None and not 0 < self.minutes <= 10_000:
            raise UserError(
                f"minutes={self.minutes:g}; choose more than 0 (or leave it out to time everything)."
            )
        if self.classes < 1:
            raise UserError(f"classes={self.classes}; a network needs at least 1 output channel.")
        if self.fit_networks < 2 or self.trust_networks < 2:
            raise UserError(
                "calibration needs at least 2 networks to fit and 2 to check; 10 and 30 are usual."
            )


class Calibration:
    """Times entries most used first; stops at the time limit; resumes where it was."""

    def __init__(
        self, space: SearchSpace, settings: CalibrationSettings, *, examples: Iterable[Architecture] = ()
    ) -> None:
        self.space, self.settings = space, settings
        self.subject = Subject(
            space=space, image=settings.image, classes=settings.classes, target=str(settings.target)
        )
        check_sizes([self.subject.shape])
        runtime_for(settings.target)  # raises if the target cannot be used here
        self._timer = timer_for(settings.target)
        self._examples = tuple(examples)
        self._measured: dict[OpCall, Entry] = {}
        self._whole: dict[str, list[Whole]] = {"fit": [], "trust": []}
        self._spent = 0.0
        self._before = to_json(conditions())
        self._ranked: list[OpCall] | None = None

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
        yield from self._time_operators()
        networks = different(self.space, seed=self.settings.seed)  # fitted on and checked on: never the same
        for phase, count in (("fit", self.settings.fit_networks), ("trust", self.settings.trust_networks)):
            yield from self._time_networks(phase, list(islice(networks, count)))

    def _time_operators(self) -> Iterator[Step]:
        pending = [call for call in self.calls if call not in self._measured]
        limit = 60 * self.settings.minutes if self.settings.minutes is not None else float("inf")
        size = self._timer.chunk
        for first in range(0, len(pending), size):
            if self._spent >= limit and len(self._measured) >= len(leaders(self.calls)):
                break
            chunk, start = pending[first : first + size], time.perf_counter()
            entries = self._timer.time(chunk, seconds=self.settings.seconds_per_entry)
            self._measured.update(zip(chunk, entries, strict=True))
            self._spent += time.perf_counter() - start
            yield Step(
                phase="operators",
                done=len(self._measured),
                total=len(self.calls),
                metrics={"minutes": self._spent / 60},
                checkpoint=True,
            )

    def _time_networks(self, phase: str, chosen: Sequence[Architecture]) -> Iterator[Step]:
        records = self._whole[phase]
        pending = chosen[len(records) :]
        for first in range(0, len(pending), GROUP):
            group = pending[first : first + GROUP]
            plans = [self.space.plan(arch, self.subject.shape, self.settings.classes) for arch in group]
            taken = time_networks(plans, self.settings.target, settings=self.settings.whole)
            for arch, (low_ms, median_ms) in zip(group, taken, strict=True):
                records.append(Whole(picks=self.space.picks(arch), low_ms=low_ms, median_ms=median_ms))
            yield Step(phase=phase, done=len(records), total=len(chosen), checkpoint=True)

    def save(self, folder: Path) -> None:
        """Write what was measured."""
        document = {
            "header": self._header(),
            "spent_s": self._spent,
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
        self._spent = state.spent_s
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
        facts = {
            "method": self._timer.method,
            "statistic": STATISTIC,
            "seconds_per_entry": self.settings.seconds_per_entry,
            "before": self._before,
            "after": to_json(conditions()),
        }
        return assemble(self.subject, evidence, self.calls, machine=to_json(machine()), conditions=facts)

    def _header(self) -> dict[str, Json]:
        return {**self.subject.header(), "seed": self.settings.seed, "machine": machine().fingerprint}

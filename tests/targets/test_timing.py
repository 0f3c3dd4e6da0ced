"""The timing protocol: enough runs over enough time, steady before it starts, honest about noise."""

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, count, cycle, pairwise, repeat
from typing import Any

import pytest
import torch
from torch import nn

from segtailor.core.codec import from_json, to_json
from segtailor.core.errors import UserError
from segtailor.core.plan import Shape
from segtailor.core.target import parse_target
from segtailor.targets import compile_network
from segtailor.targets.machine import Conditions, condition_warnings, machine
from segtailor.targets.runtime import Compiled
from segtailor.targets.timing import (
    BenchEntry,
    Measurement,
    Samples,
    Stopwatch,
    TimingSettings,
    check_contract,
    measure,
    measure_all,
    time_all,
)

QUICK = TimingSettings(runs=10, seconds=0.05, warm_up_seconds=0.01, warm_up_limit=0.3, window=3)
TARGET = parse_target("cpu/eager/fp32?threads=1")


class Waiting(Compiled):
    """Waits as long as it is told, run by run."""

    def __init__(self, seconds: Iterator[float], log: list[str] | None = None, name: str = "") -> None:
        self._seconds, self._log, self._name = seconds, log, name

    def run(self) -> None:
        """Wait without giving the processor away: sleeping is too coarse."""
        if self._log is not None:
            self._log.append(self._name)
        stop = time.perf_counter() + next(self._seconds)
        while time.perf_counter() < stop:
            pass


class Scripted(Stopwatch):
    """A stopwatch that reads times from a list, so that arithmetic can be checked exactly."""

    def __init__(self, seconds: Iterator[float]) -> None:
        super().__init__(Compiled())
        self._seconds = seconds

    def sample(self, repeats: int) -> float:  # noqa: ARG002 - the form of its kind
        """Return the next time."""
        return next(self._seconds)


def samples(*times: float, **changes: Any) -> Samples:
    facts = {"repeats": 1, "warm_up_runs": 3, "warm_up_seconds": 0.1, "steady": True} | changes
    return Samples(times=times, **facts)


def entrant(compiled: Compiled, name: str = "waiting") -> BenchEntry:
    return BenchEntry(network=name, target=TARGET, inputs=(Shape(3, 8, 8),), compiled=compiled)


def test_a_known_time_is_measured() -> None:
    found = measure(entrant(Waiting(repeat(0.002))), QUICK)
    assert found.min_ms == pytest.approx(2, rel=0.05)
    assert found.min_ms <= found.median_ms <= found.p95_ms
    assert found.runs >= 10
    assert found.seconds >= 0.05
    assert found.fps == pytest.approx(1000 / found.median_ms)


def test_runs_go_on_until_both_number_and_time_are_reached() -> None:
    by_number = time_all([Scripted(repeat(1.0))], QUICK)[0]
    assert len(by_number.times) == 10
    by_time = time_all([Scripted(repeat(0.001))], QUICK)[0]
    assert sum(by_time.times) == pytest.approx(0.05, abs=0.0011)


def test_short_runs_are_timed_several_at_a_time() -> None:
    found = time_all(
        [Scripted(repeat(1e-5))], TimingSettings(runs=10, seconds=0.01, sample_ms=1, warm_up_limit=0.1)
    )[0]
    assert found.repeats == 100
    assert found.runs == 100 * len(found.times)


def test_warm_up_lasts_until_the_time_is_steady() -> None:
    settling = chain((1.0 / (step + 1) for step in range(200)), repeat(1 / 200))
    found = time_all(
        [Scripted(settling)], TimingSettings(runs=5, seconds=0, warm_up_seconds=0, tolerance=0.02)
    )[0]
    assert found.steady
    assert found.warm_up_runs > 100
    assert max(found.times) < 0.01


def test_a_time_that_never_settles_is_reported() -> None:
    growing = (0.001 * 1.02 ** (step % 5000) for step in count())
    limited = TimingSettings(
        runs=5, seconds=0, warm_up_seconds=0, warm_up_limit=0.01, tolerance=0.01, window=3
    )
    assert not time_all([Scripted(growing)], limited)[0].steady


def test_rivals_take_turns() -> None:
    log: list[str] = []
    rivals = [Waiting(repeat(0.001), log, "a"), Waiting(repeat(0.001), log, "b")]
    settings = TimingSettings(runs=20, seconds=0, warm_up_seconds=0, warm_up_limit=0.05, block_ms=5)
    measure_all([entrant(rival) for rival in rivals], settings)
    turns = sum(one != other for one, other in pairwise(log))
    assert turns >= 6


def test_every_block_makes_progress() -> None:
    found = time_all([Scripted(repeat(1.0)), Scripted(repeat(2.0))], replace(QUICK, block_ms=0))
    assert [len(one.times) for one in found] == [10, 10]


def test_quantiles_are_those_of_the_samples() -> None:
    found = samples(*(float(value) for value in range(1, 102)))
    assert (found.median, found.p95) == (51, 96)
    assert found.spread == pytest.approx(50 / 51)


def test_slowing_down_while_measured_is_a_warning() -> None:
    times = chain(repeat(0.001, 30), (0.001 + 0.0001 * step for step in range(500)))
    found = measure(entrant(Waiting(times)), TimingSettings(runs=60, seconds=0, warm_up_seconds=0, window=3))
    assert any("slower while measured" in warning for warning in found.warnings)


def test_a_busy_machine_and_a_falling_clock_are_warnings() -> None:
    calm = Conditions(busy=0.02, cpu_mhz=3000)
    assert condition_warnings(calm, calm) == []
    assert "other processes used 90%" in condition_warnings(calm, Conditions(busy=0.9))[0]
    assert "fell from 3000 to 2000" in condition_warnings(calm, Conditions(busy=0, cpu_mhz=2000))[0]


def test_a_measurement_carries_its_conditions_through_json() -> None:
    compiled = compile_network(nn.Conv2d(3, 4, 3), TARGET, (Shape(3, 8, 8),))
    found = measure(entrant(compiled, "conv"), QUICK)
    assert from_json(Measurement, to_json(found), what="measurement") == found
    document = found.document()
    assert {"median_ms", "p95_ms", "fps", "runs", "target", "includes"} <= document.keys()
    assert document["threads"] == 1
    assert document["machine"]["versions"]["torch"] == torch.__version__  # type: ignore[index,call-overload]


def test_the_fingerprint_names_hardware_and_not_its_owner() -> None:
    import getpass
    import platform

    here = machine()
    text = str(to_json(here))
    assert platform.node() not in text
    assert f"/{getpass.getuser()}" not in text
    assert here.cores >= 1
    assert len(here.fingerprint) == 16
    assert here.differences(here) == []


def test_a_contract_binds_the_slow_runs_too() -> None:
    found = measure(entrant(Waiting(cycle([0.001] * 9 + [0.004]))), QUICK)
    assert check_contract(found, 10_000).met
    missed = check_contract(found, 1.5)
    assert found.median_ms < 1.5
    assert not missed.met
    assert "MISSES" in str(missed)
    for wrong in (0, -1, float("nan")):
        with pytest.raises(UserError, match="positive"):
            check_contract(found, wrong)


@pytest.mark.parametrize("changes", [{"runs": 1}, {"seconds": -1}, {"window": 0}])
def test_absurd_settings_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="timing"):
        TimingSettings(**changes)


@pytest.mark.device
@pytest.mark.parametrize("text", ["cuda/eager/fp16", "cuda/graph/fp16"])
def test_events_time_a_gpu(text: str) -> None:
    target = parse_target(text)
    shape = (Shape(64, 256, 256),)
    compiled = compile_network(nn.Conv2d(64, 64, 3, padding=1), target, shape)
    found = measure(
        BenchEntry(network="conv", target=target, inputs=shape, compiled=compiled),
        TimingSettings(seconds=0.2),
    )
    # 4.8 GFLOP: between an impossible 1 microsecond and a millisecond on any GPU of this decade
    assert 0.001 < found.median_ms < 5
    assert found.threads is None
    assert found.machine.gpus

"""A reference workload shows that the machine is busy, and an old pack is checked before it is used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import segtailor.spaces  # noqa: F401 - registers the families
from segtailor.core.plan import Shape
from segtailor.core.registry import SPACES
from segtailor.core.target import parse_target
from segtailor.costs.calibrate import Calibration, ReferenceTimer, reference_for, untrusted
from segtailor.costs.keys import key_of
from segtailor.costs.pack import Entry, LatencyTable, Pack, Trust
from segtailor.costs.trust import MeasuredNetwork
from tests.costs.test_calibrate import EAGER, settings, tiny


def reference_times(*seconds: float) -> ReferenceTimer:
    rows = iter(seconds)
    return ReferenceTimer(lambda: next(rows))


def test_what_is_much_slower_than_the_quickest_is_slow() -> None:
    reference = reference_times(1.0, 1.1, 2.0, 0.5)
    assert [reference.is_slow(reference.measure()) for _ in range(3)] == [False, False, True]
    assert reference.is_slow(1.0) is False
    reference.measure()
    assert reference.is_slow(1.0) is True  # now that it was seen to be twice as quick


@pytest.mark.slow
def test_waiting_ends_with_the_first_quiet_moment_or_with_the_patience() -> None:
    reference = reference_times(1.0, 3.0, 1.0)
    reference.measure()
    assert 0.4 < reference.wait(10.0) < 5.0
    stubborn = ReferenceTimer(iter([1.0, *[9.0] * 1000]).__next__)
    stubborn.measure()
    assert stubborn.wait(0.6) < 3.0


def test_a_real_reference_of_a_processor_takes_some_time_and_none_is_made_elsewhere() -> None:
    assert 0 < reference_for(parse_target(EAGER)).measure() < 1.0
    elsewhere = ReferenceTimer()
    assert not elsewhere.is_slow(elsewhere.measure())


def pack_and_networks(factors: tuple[float, ...]) -> tuple[Pack, list[MeasuredNetwork]]:
    """A pack, and networks that take so many times what it says."""
    space = SPACES.get("scalable_path")(
        depths=(1,), width_steps=(1, 2), ratios=("0", "1/2", "1"), paths=1, block="conv"
    )
    shape = Shape(3, 32, 64)
    entries = {key_of(call): Entry(us=100.0, runs=1) for call in Calibration(space, settings()).calls}
    pack = Pack(
        space="scalable_path",
        settings={},
        image=(32, 64),
        classes=4,
        target=EAGER,
        machine={},
        entries=entries,
    )
    arch = space.architecture({decision.name: 0 for decision in space.decisions})
    plan = space.plan(arch, shape, 4)
    price = LatencyTable(pack=pack).of(plan)
    return pack, [
        MeasuredNetwork(f"{number}", plan, factor * price, factor * price)
        for number, factor in enumerate(factors)
    ]


def test_a_pack_whose_prices_are_far_off_says_so() -> None:
    pack, _ = pack_and_networks((1.0,))
    assert untrusted(pack) == []
    wrong = replace(pack, trust=Trust(pearson=0.7, spearman=0.7, mape=0.6, networks=()))
    assert "by 60% on average" in untrusted(wrong)[0]


@pytest.mark.slow
def test_a_calibration_on_a_machine_that_becomes_busy_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference is told to be slow after its first times; everything else is measured."""
    from segtailor.costs import calibrate

    rows = iter([1.0, 1.0, 1.0, *[3.0] * 10_000])
    monkeypatch.setattr(calibrate, "reference_for", lambda _: ReferenceTimer(lambda: next(rows)))
    monkeypatch.setattr(calibrate, "MAX_WAITING_SECONDS", 0.5)
    job = Calibration(tiny(), settings())
    list(job.steps())
    (told, *_) = job.pack().summary()["warnings"]  # type: ignore[misc]
    assert "the machine was busy during" in str(told)
    assert "3.0 times as long" in str(told)


@pytest.mark.slow
def test_the_time_given_bounds_operators_and_networks_together() -> None:
    job = Calibration(
        SPACES.get("scalable_path")(), settings(minutes=0.1, seconds_per_entry=0.02, trust_networks=30)
    )
    steps = list(job.steps())
    counts = {step.phase: step.done for step in steps}
    assert counts["operators"] < len(job.calls)
    assert counts["fit"] >= 2
    assert 2 <= counts["trust"] < 30
    assert all(entry.us >= 0 for entry in job.pack().entries.values())

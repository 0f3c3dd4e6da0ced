"""Networks that prices are fitted to: any number of them covers the space, and the time is kept."""

from __future__ import annotations

import time
from itertools import islice

import pytest

from segtailor.core.plan import Plan, Shape
from segtailor.core.space import Architecture, family, fingerprint_of
from segtailor.costs.analytic import Macs
from segtailor.costs.assembly import CalibrationSubject
from segtailor.costs.sampling import LEAST_NETWORKS, fit_space, spread

IMAGE = Shape(3, 32, 64)
TARGET = "cpu/eager/fp32?threads=1"


def plan(arch: Architecture) -> Plan:
    return family("elastic")().plan(arch, IMAGE, 4)


@pytest.mark.parametrize("number", [4, 10, 32])
def test_the_first_networks_cover_the_range_of_costs(number: int) -> None:
    space = family("elastic")()
    drawn = list(islice(spread(space, plan, seed=0), number))
    assert len({fingerprint_of(arch) for arch in drawn}) == number
    macs = sorted(Macs().of(plan(arch)) for arch in drawn)
    assert macs[0] == Macs().of(plan(space.architecture({one.name: 0 for one in space.decisions})))
    assert macs[-1] > 10 * macs[0]
    others = sorted(Macs().of(plan(arch)) for arch in islice(spread(space, plan, seed=7), 100))
    middle = others[len(others) // 2]
    assert any(0.5 * middle < value < 2 * middle for value in macs)
    guesses = {fingerprint_of(arch) for arch in space.first_guesses()}  # type: ignore[attr-defined]
    assert number < 6 or guesses & {fingerprint_of(arch) for arch in drawn}


def test_a_space_without_first_guesses_is_covered_as_well() -> None:
    space = family("scalable_path")()
    drawn = list(islice(spread(space, lambda arch: space.plan(arch, IMAGE, 4), seed=0), 12))
    assert len({fingerprint_of(arch) for arch in drawn}) == 12


@pytest.mark.slow
def test_fitting_keeps_its_time_and_says_what_each_measurement_took() -> None:
    subject = CalibrationSubject(space=family("elastic")(), image=(32, 64), classes=4, target=TARGET)
    begin = time.monotonic()
    fit = fit_space(subject, seconds=3.0, includes="network+resize+argmax")
    assert time.monotonic() - begin < 30.0
    assert len(fit.seconds) >= LEAST_NETWORKS
    assert min(fit.seconds) > 0
    assert fit.slow_runs >= 1.0
    assert fit.rest_ms >= 0.0
    assert fit.trust.mape < 1.0
    assert {row.measured_ms > 0 for row in fit.trust.networks} == {True}

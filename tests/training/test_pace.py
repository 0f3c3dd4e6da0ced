"""A time that is given is kept: fewer steps where they are slow, never fewer than the least, over all sessions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from segtailor.core.errors import UserError
from segtailor.training.pace import Allowance
from segtailor.training.settings import FitSettings
from tests.training.toys import Shots, fit


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_steps_that_fit_the_time_are_all_taken_and_others_left_out() -> None:
    clock = Clock()
    allowance = Allowance(100.0, clock=clock)
    clock.now = 20.0
    assert allowance.total(20, 90, least=1) == 90
    assert allowance.total(20, 200, least=1) == 100
    assert allowance.total(5, 200, least=1) == 25
    assert allowance.total(5, 200, least=60) == 60
    assert allowance.total(20, 200, least=1, share=0.5) == 60
    clock.now = 500.0
    assert allowance.over
    assert allowance.total(20, 200, least=1) == 20


def test_what_a_busy_moment_took_away_a_quiet_hour_gives_back() -> None:
    clock = Clock()
    allowance = Allowance(100.0, clock=clock)
    clock.now = 20.0
    assert allowance.total(10, 100, least=1) == 50
    clock.now = 40.0
    assert allowance.total(60, 100, least=1) == 100


def test_a_slow_first_step_does_not_predict_the_others() -> None:
    clock = Clock()
    allowance = Allowance(100.0, clock=clock)
    clock.now = 40.0
    assert allowance.total(1, 500, least=1) == 500
    clock.now = 41.0
    assert allowance.total(11, 500, least=1) == 500  # a tenth of a second each
    clock.now = 60.0
    assert allowance.total(21, 500, least=1) == 61  # one second each
    short = Allowance(10.0, clock=clock)
    clock.now = 80.0
    assert short.total(1, 500, least=1) == 1
    assert short.total(1, 500, least=5) == 5


def test_without_a_time_nothing_changes() -> None:
    assert Allowance(None).total(3, 200, least=1) == 200
    assert not Allowance(None).over


def test_time_of_earlier_sessions_counts() -> None:
    clock = Clock()
    allowance = Allowance(100.0, clock=clock)
    clock.now = 1000.0  # lay still
    allowance.begin(60.0)
    clock.now = 1030.0
    assert allowance.spent == 90.0
    assert not allowance.over


def test_a_training_with_too_little_time_has_fewer_steps_but_the_least_and_ends_with_a_score() -> None:
    job = fit(validation=Shots([(24, 32)] * 2), steps=100_000, seconds=0.3, least_steps=4)
    records = list(job.steps())
    assert 4 <= job.done < 100_000
    assert records[-1].done == records[-1].total == job.done
    assert job.scores is not None
    assert any("steps fit the time" in (record.message or "") for record in records)
    assert job.rate == pytest.approx(0.0)  # the schedule ended with it


def test_a_shortened_training_goes_on_with_its_length_and_its_clock(tmp_path: Path) -> None:
    first = fit(steps=100_000, seconds=0.4)
    steps = first.steps()
    next(steps)
    first.save(tmp_path)
    steps.close()
    second = fit(steps=100_000, seconds=0.4)
    second.load(tmp_path)
    assert (second.done, second.total) == (first.done, first.total)
    assert second.allowance.spent >= first.allowance.spent - 0.1
    assert list(second.steps())[-1].total == second.done


def test_a_time_must_be_above_zero() -> None:
    with pytest.raises(UserError, match="seconds: 0"):
        replace(FitSettings(), seconds=0.0)

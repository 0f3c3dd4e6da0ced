"""Schedules: values at known points."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from segtailor.core.errors import UserError
from segtailor.training.settings import Schedule, ScheduleKind, cosine, exponential, poly, step, warm_up


def test_functions_have_their_textbook_values() -> None:
    assert [poly(0), poly(1)] == [1, 0]
    assert poly(0.5, power=0.9) == pytest.approx(0.535887, abs=1e-6)
    assert exponential(10, gamma=0.9) == pytest.approx(0.348678, abs=1e-6)
    assert [cosine(0), cosine(0.5), cosine(1)] == pytest.approx([1, 0.5, 0])
    assert cosine(1, final=0.1) == pytest.approx(0.1)
    assert [step(p, milestones=(0.5, 0.75), gamma=0.1) for p in (0.49, 0.5, 0.8)] == pytest.approx(
        [1, 0.1, 0.01]
    )
    assert [warm_up(done, steps=4, start=0.2) for done in (0, 2, 4, 9)] == pytest.approx([0.2, 0.6, 1, 1])


@pytest.mark.parametrize("kind", ["poly", "exponential", "cosine", "step", "constant"])
def test_warm_up_rises_to_one_and_the_schedule_follows(kind: ScheduleKind) -> None:
    schedule = Schedule(kind=kind, warmup=10)
    factors = [schedule.factor(done, total=110, steps_per_epoch=5) for done in range(110)]
    assert factors[:11] == pytest.approx([done / 10 for done in range(11)])
    assert all(later <= earlier for earlier, later in pairwise(factors[10:]))
    assert min(factors) >= 0


def test_progress_is_counted_after_the_warm_up() -> None:
    schedule = Schedule(kind="poly", power=1.0, warmup=10)
    assert schedule.factor(60, total=110, steps_per_epoch=1) == pytest.approx(0.5)
    assert schedule.factor(110, total=110, steps_per_epoch=1) == 0
    assert Schedule(kind="exponential", gamma=0.5).factor(9, total=99, steps_per_epoch=3) == pytest.approx(
        0.125
    )


def test_an_exponential_rate_falls_after_each_epoch_and_not_within() -> None:
    schedule = Schedule(kind="exponential", gamma=0.5, epoch_steps=3)
    factors = [schedule.factor(done, total=9, steps_per_epoch=1) for done in range(9)]
    assert factors == [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25]


def test_a_warm_up_longer_than_the_run_does_not_divide_by_zero() -> None:
    assert Schedule(warmup=10).factor(5, total=6, steps_per_epoch=1) == 0.5


@pytest.mark.parametrize(
    "wrong", [{"warmup": -1}, {"milestones": (0.9, 0.1)}, {"milestones": (0.0,)}, {"gamma": 0.0}]
)
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        Schedule(**wrong)

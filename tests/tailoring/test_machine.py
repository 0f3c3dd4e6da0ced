"""What a network of a given latency does, from two that were timed."""

from __future__ import annotations

import pytest

from segtailor.tailoring.machine import rate_at


def test_time_that_does_no_work_weighs_more_on_small_networks() -> None:
    small, usual = (0.6, 10e6), (4.6, 210e6)  # 0.4 ms of overhead, then 50 million a millisecond
    assert rate_at(4.6, small, usual) == pytest.approx(210e6 / 4.6)
    assert 1.4 * rate_at(1.4, small, usual) == pytest.approx(50e6)
    assert 0.3 * rate_at(0.3, small, usual) == pytest.approx(5e6)  # below both: in proportion, never negative
    assert rate_at(100.0, small, usual) == pytest.approx(50e6, rel=0.01)


def test_times_that_do_not_grow_with_work_leave_the_larger_network_to_say() -> None:
    assert rate_at(1.0, (2.0, 10e6), (1.5, 60e6)) == pytest.approx(40e6)
    assert rate_at(1.0, (2.0, 10e6), (3.0, 10e6)) == pytest.approx(10e6 / 3)

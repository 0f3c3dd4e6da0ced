"""Latency by measuring whole networks."""

from __future__ import annotations

import torch

from segtailor import api
from segtailor.core.target import parse_target
from segtailor.costs.measured import MeasuredLatency
from segtailor.targets.timing import TimingSettings

torch.set_num_threads(1)
QUICK = TimingSettings(runs=3, seconds=0.0, warm_up_seconds=0.0, warm_up_limit=0.0, window=2)


def cost() -> MeasuredLatency:
    return MeasuredLatency(target=parse_target("cpu/eager/fp32?threads=1"), settings=QUICK)


def test_a_network_is_measured_once() -> None:
    measured = cost()
    plan = api.plan("squeezenas-mac-small", image=(32, 64), classes=4)
    first = measured.of(plan)
    assert first > 0
    assert measured.of(plan) == first
    assert measured.of(plan.deployed()) == first
    assert len(measured.known) == 1


def test_another_size_is_another_network() -> None:
    measured = cost()
    for size in ((32, 64), (64, 64)):
        measured.of(api.plan("squeezenas-mac-small", image=size, classes=4))
    assert len(measured.known) == 2

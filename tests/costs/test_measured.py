"""Whole networks: each drawn once, timed as deployed, and measured once as a cost."""

from __future__ import annotations

from itertools import islice

import torch

from segtailor.core.registry import SPACES
from segtailor.core.space import fingerprint_of
from segtailor.core.target import parse_target
from segtailor.costs.measured import MeasuredLatency, distinct_architectures, time_networks
from segtailor.spaces import networks
from segtailor.targets.timing import TimingSettings

torch.set_num_threads(1)
QUICK = TimingSettings(runs=3, seconds=0.0, warm_up_seconds=0.0, warm_up_limit=0.0, window=2)


def cost() -> MeasuredLatency:
    return MeasuredLatency(target=parse_target("cpu/eager/fp32?threads=1"), settings=QUICK)


def test_a_network_is_measured_once() -> None:
    measured = cost()
    plan = networks.expand("squeezenas-mac-small", image=(32, 64), classes=4)
    first = measured.of(plan)
    assert first > 0
    assert measured.of(plan) == first
    assert measured.of(plan.deployed()) == first
    assert len(measured.known) == 1


def test_another_size_is_another_network() -> None:
    measured = cost()
    for size in ((32, 64), (64, 64)):
        measured.of(networks.expand("squeezenas-mac-small", image=size, classes=4))
    assert len(measured.known) == 2


def test_networks_are_drawn_once_each_and_the_same_every_time() -> None:
    space = SPACES.get("inverted_residual")()
    first = [fingerprint_of(arch) for arch in islice(distinct_architectures(space, seed=3), 20)]
    again = [fingerprint_of(arch) for arch in islice(distinct_architectures(space, seed=3), 20)]
    other = [fingerprint_of(arch) for arch in islice(distinct_architectures(space, seed=4), 20)]
    assert len(set(first)) == 20
    assert first == again != other


def test_drawing_ends_when_a_space_has_no_more() -> None:
    space = SPACES.get("scalable_path")(depths=(1, 2), width_steps=(1,), ratios=("0", "1"), paths=1)
    assert len(list(distinct_architectures(space, seed=0))) == 2**5


def test_networks_are_timed_in_turns_undisturbed_and_median() -> None:
    plans = [networks.expand("squeezenas-mac-small", image=(32, 64), classes=4)] * 2
    taken = time_networks(plans, parse_target("cpu/eager/fp32?threads=1"), settings=QUICK)
    assert len(taken) == 2
    assert all(0 < low <= median for low, median in taken)

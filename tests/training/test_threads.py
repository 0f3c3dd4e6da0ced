"""Threads: all on a quiet machine, fewer where they would wait for cores that others use, and back again."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
import torch

from segtailor.training.threads import (
    RECORDS,
    RETRY_SECONDS,
    Threads,
    chosen_threads,
    fastest_count,
    thread_counts,
)

QUIET = {1: 17.0, 2: 13.0, 4: 9.0}  # milliseconds of a step by number of threads
BUSY = {1: 18.0, 2: 95.0, 4: 400.0}


class Machine:
    """A machine whose speed and clock are told."""

    def __init__(self) -> None:
        self.times, self.now, self.probes = QUIET, 0.0, 0

    def probe(self, count: int) -> float:
        self.probes += 1
        return self.times[count]

    def threads(self, most: int) -> Threads:
        return Threads(most, probe=self.probe, clock=lambda: self.now)

    def work(self, threads: Threads, records: int = RECORDS) -> list[str]:
        told = [threads.observe(steps=10, seconds=10 * self.times[threads.count]) for _ in range(records)]
        return [text for text in told if text]


@pytest.fixture(autouse=True)
def _threads_are_put_back() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("most", "counts"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_numbers_of_threads_double_up_to_all(most: int, counts: list[int]) -> None:
    assert thread_counts(most) == counts


def test_more_threads_must_be_clearly_quicker() -> None:
    assert fastest_count(4, {1: 10.0, 2: 9.5, 4: 9.2}.__getitem__) == 1
    assert fastest_count(4, {1: 10.0, 2: 6.0, 4: 5.9}.__getitem__) == 2
    assert fastest_count(4, QUIET.__getitem__) == 4


def test_a_busy_machine_is_noticed_before_the_first_step() -> None:
    machine = Machine()
    machine.times = BUSY
    assert machine.threads(2).count == 1
    assert torch.get_num_threads() == 1


def test_steps_that_become_slow_lead_to_fewer_threads_and_quiet_to_all_again() -> None:
    machine = Machine()
    threads = machine.threads(2)
    assert threads.count == 2
    assert machine.work(threads) == []
    machine.times = BUSY
    assert machine.work(threads) == ["computing with 1 of 2 threads: other programs use the processor."]
    assert torch.get_num_threads() == 1
    machine.times = QUIET
    assert machine.work(threads) == []  # not yet: it was looked at just now
    machine.now += RETRY_SECONDS + 1
    assert machine.work(threads) == ["computing with 2 of 2 threads: the processor is free again."]
    assert torch.get_num_threads() == 2


def test_work_that_gains_nothing_from_threads_gets_one_whatever_the_probe_says() -> None:
    machine = Machine()
    threads = machine.threads(2)
    assert threads.count == 2
    tiny = {1: 0.9, 2: 28.0}  # seconds of a step of a supernet on small images, on a busy machine
    told = [threads.observe(steps=1, seconds=tiny[threads.count]) for _ in range(4)]
    assert told[-2:] == ["computing with 1 of 2 threads: more are no faster here.", None]
    assert threads.count == torch.get_num_threads() == 1
    machine.now += 10 * RETRY_SECONDS
    assert machine.work(threads) == []  # and it stays so


def test_a_machine_that_stays_busy_is_probed_less_and_less_often() -> None:
    machine = Machine()
    machine.times = BUSY
    threads = machine.threads(2)
    at_first = machine.probes
    for _ in range(1000):
        machine.now += 1.0
        machine.work(threads)
    assert machine.probes - at_first <= 2 * 6  # after 30, 60, 120, 240, ... seconds


def test_steps_that_are_slow_whatever_the_threads_are_not_probed_for_each_of_them() -> None:
    machine = Machine()
    threads = machine.threads(2)
    machine.work(threads)
    for factor in (2.0, 2.1, 2.0, 2.2, 2.1, 2.0):
        threads.observe(steps=1, seconds=factor * QUIET[2])
    at_first = machine.probes
    for _ in range(50):
        threads.observe(steps=1, seconds=2.1 * QUIET[2])
    assert machine.probes == at_first


def test_one_thread_needs_no_probe_and_a_fixed_number_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    assert machine.threads(1).count == 1
    assert machine.probes == 0
    torch.set_num_threads(2)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: pytest.fail("changed"))
    with chosen_threads(torch.device("cpu"), fixed=True) as threads:
        assert torch.get_num_threads() == 2
        for seconds in (1.0, 1.0, 1.0, 100.0, 100.0, 100.0):
            assert threads.observe(steps=1, seconds=seconds) is None
    monkeypatch.undo()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_a_probe_works_wherever_it_is_asked_for(mode: Callable[[], AbstractContextManager[None]]) -> None:
    torch.set_num_threads(2)
    with mode(), chosen_threads(torch.device("cpu")) as threads:
        assert threads.most == 2


def test_a_probe_draws_no_random_numbers_and_the_number_of_threads_is_put_back() -> None:
    torch.set_num_threads(2)
    state = torch.get_rng_state()
    with chosen_threads(torch.device("cpu")) as threads:
        assert threads.count in (1, 2)
    assert torch.get_num_threads() == 2
    assert torch.equal(torch.get_rng_state(), state)


MEMORY = """
import psutil, torch
from segtailor.training.device import keep_memory

process = psutil.Process()
resident = []
for keeps in (False, True):
    if keeps:
        keep_memory(torch.device("cpu"))
    for _ in range(2):
        block = torch.ones(64_000_000)
        del block
    resident.append(process.memory_info().rss)
print(resident[1] - resident[0])
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator can be told")
def test_memory_stays_with_the_process_between_steps() -> None:
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 200_000_000  # the block of 256 MB

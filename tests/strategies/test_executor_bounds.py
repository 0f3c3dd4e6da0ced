"""The number of processes that a search starts is bounded before any is started."""

import pytest

from segtailor.core.errors import UserError
from segtailor.strategies import Processes, Ray, executors
from tests.strategies import planted


def test_a_million_workers_are_refused() -> None:
    for executor in (Processes, Ray):
        with pytest.raises(UserError, match="workers: 1000000"):
            executor(workers=10**6)


def test_more_workers_than_fit_into_memory_are_refused_before_they_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(executors, "WORKER_MEMORY_BYTES", 2**50)  # no machine has as much for eight of them
    with (
        pytest.raises(UserError, match=r"starting 8 processes for trials needs"),
        Processes(workers=8).open(planted.judge, "cpu"),
    ):
        pass

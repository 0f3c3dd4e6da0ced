"""The number of processes that a search starts is bounded before any is started."""

import pytest
from segtailor.recipes.parts import ExecutorSpec

from segtailor.core.errors import UserError
from segtailor.recipes import parts


def test_a_million_workers_are_refused() -> None:
    with pytest.raises(UserError, match="workers: 1000000"):
        ExecutorSpec(kind="processes", workers=10**6)


def test_more_workers_than_fit_into_memory_are_refused_before_they_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parts, "WORKER_MEMORY", 2**50)  # no machine has as much for eight of them
    with pytest.raises(UserError, match=r"starting 8 processes for trials needs"):
        ExecutorSpec(kind="processes", workers=8).build("cpu")

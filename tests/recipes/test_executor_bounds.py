"""The number of processes that a search starts is bounded before any is started."""

import pytest

from segtailor.core.errors import UserError
from segtailor.recipes.parts import ExecutorSpec


def test_a_million_workers_are_refused() -> None:
    with pytest.raises(UserError, match="1000000 are too many"):
        ExecutorSpec(kind="processes", workers=10**6)


def test_more_workers_than_fit_into_memory_are_refused_before_they_start() -> None:
    with pytest.raises(UserError, match=r"starting 1024 processes for trials needs"):
        ExecutorSpec(kind="processes", workers=1024).build("cpu")

"""Shared test set-up: one torch thread per process, so that parallel tests do not disturb one another."""

import gc
import signal
from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    """Leave what was imported and collected to itself: looking it over for garbage again and again takes a while."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def signals_heard() -> Iterator[None]:
    """Let signals count for tests that send them, also where this suite runs in the background or under `nohup`.

    There some are ignored, and programs started from here would inherit that; a run rightly obeys it.
    """
    usual = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    ignored = [number for number in usual if signal.getsignal(number) == signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, usual[number])
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)

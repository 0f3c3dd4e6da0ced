"""Shared test set-up: one torch thread per process, so that parallel tests do not disturb one another."""

import gc
import signal
import sys
from collections.abc import Iterator
from functools import cache

import pytest
import torch

torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    """Leave what was imported and collected to itself, and look for garbage less often: it was a tenth of the time.

    By default that is after 700 new objects, which building one network makes many times.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 5, 5)


@pytest.fixture(scope="session", autouse=True)
def _onnx_operators_read_once() -> Iterator[None]:
    """Let torch read the table of its ONNX operators once, not at every export: it depends on the opset alone.

    That is most of the time that a small network takes. Only where tests that export were collected.
    """
    if "onnxscript" not in sys.modules:
        yield
        return
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    read = cache(ONNXRegistry.from_torchlib)

    def read_once(*asked: int, **named: int) -> ONNXRegistry:
        registry, table = ONNXRegistry(), read(*asked, **named)
        registry._opset_version = table._opset_version
        registry.functions = {operator: list(known) for operator, known in table.functions.items()}
        return registry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(read_once))
        yield


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

"""Shared test set-up: one torch thread per process, so that parallel tests do not disturb one another."""

import gc

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

"""Shared test set-up: one torch thread per process, so that parallel tests do not disturb one another."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)

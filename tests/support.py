"""Helpers for parity tests: deterministic weights by key name, and where reference files live."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

FIXTURES = Path(__file__).parent / "fixtures"
SHARED = Path(__file__).parents[2] / "shared"


def deterministic(key: str, shape: tuple[int, ...]) -> Tensor:
    """Generate one entry of a state dictionary from its own name; the rule is in tests/fixtures/README.md."""
    rng = np.random.default_rng(zlib.crc32(key.encode()))
    if key.endswith("num_batches_tracked"):
        return torch.tensor(0)
    if key.endswith("running_var"):
        value = 0.5 + rng.random(shape)
    elif key.endswith("running_mean"):
        value = 0.1 * rng.standard_normal(shape)
    elif len(shape) == 1 and key.endswith("weight"):
        value = 1 + 0.1 * rng.standard_normal(shape)
    elif len(shape) == 1 and key.endswith("bias"):
        value = 0.1 * rng.standard_normal(shape)
    else:
        value = rng.standard_normal(shape) * np.sqrt(2 / (shape[1] * shape[2] * shape[3]))
    return torch.from_numpy(np.asarray(value).astype(np.float32))


def deterministic_state(keys: Iterable[tuple[str, list[int]]]) -> dict[str, Tensor]:
    """Generate a whole state dictionary."""
    return {key: deterministic(key, tuple(shape)) for key, shape in keys}


def noise(*shape: int) -> Tensor:
    """Return the usual parity input."""
    return torch.from_numpy(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


def fixture(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Load `name.json` and `name.npz`."""
    return json.loads((FIXTURES / f"{name}.json").read_text()), dict(np.load(FIXTURES / f"{name}.npz"))


def shared(path: str) -> Path:
    """Return a file of the shared folder beside the checkout, or skip the test saying what is missing."""
    found = SHARED / path
    if not found.exists():
        pytest.skip(f"needs {path} in a `shared` folder beside the checkout (published weights and pictures)")
    return found

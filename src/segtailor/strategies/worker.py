"""The worker's side of a trial: JSON in, JSON out, and whatever goes wrong becomes a failed result."""

from __future__ import annotations

import importlib
import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from segtailor.core.codec import from_json, to_json
from segtailor.core.errors import Diverged, UserError
from segtailor.core.strategy import Trial, TrialResult

Work: TypeAlias = Callable[[Trial, str], TrialResult]
MEMORY = r"out of memory|can't allocate memory|cannot allocate memory"  # how libraries say it


def perform(work: str, message: str, device: str) -> str:
    """Evaluate one trial with the function named `work` (`module:function`)."""
    started = time.perf_counter()
    trial = from_json(Trial, json.loads(message), what="trial")
    try:
        result = resolve(work)(trial, device)
    except Exception as problem:  # noqa: BLE001 a failed trial is a result, not a crash
        result = trial.failed(_describe(problem), passing=_may_pass(problem))
    return json.dumps(to_json(replace(result, id=trial.id, seconds=time.perf_counter() - started)))


def resolve(work: str) -> Work:
    """Import the function that `module:function` names."""
    module, _, name = work.partition(":")
    try:
        found: Work = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as problem:
        raise UserError(
            f"workers cannot import '{work}' ({problem}); install its package where they run."
        ) from problem
    return found


def encode(trial: Trial) -> str:
    """Write a trial as a message."""
    return json.dumps(to_json(trial))


def decode(message: str) -> TrialResult:
    """Read the answer to a message."""
    return from_json(TrialResult, json.loads(message), what="trial result")


def limit_threads(threads: int) -> None:
    """Let torch use few threads where it was imported: processes that share cores slow each other down otherwise."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)


def _describe(problem: Exception) -> str:
    text = " ".join(str(problem).split())[:500]
    return text if isinstance(problem, UserError) else f"{type(problem).__name__}: {text}"


def _may_pass(problem: Exception) -> bool:
    """Tell whether another try may go well: memory that others held, arithmetic that differs from run to run."""
    memory = "OutOfMemory" in type(problem).__name__ or re.search(MEMORY, str(problem), re.IGNORECASE)
    return isinstance(problem, MemoryError | Diverged) or bool(memory)

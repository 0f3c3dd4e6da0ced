"""A co-search in a run directory: `python -m tests.strategies.cosearch_driven FOLDER`, to be killed by a test."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from segtailor.runs import Policy, execute
from tests.strategies.cosearch_toys import problem, settings

RECIPE: dict[str, Any] = {"kind": "driven"}
EVERY_STEP = Policy(every_steps=1, tensorboard=False)


def drive(folder: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    how = settings(steps=6, ahead=4, judge_every=3)
    return execute(lambda: how.job(problem(seed=3)), folder, RECIPE, policy=EVERY_STEP)


if __name__ == "__main__":
    drive(Path(sys.argv[1]))

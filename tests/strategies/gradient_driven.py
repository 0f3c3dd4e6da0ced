"""A gradient search in a run directory: `python -m tests.strategies.gradient_driven FOLDER`, to be killed by a test."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from segtailor.runs import execute
from segtailor.strategies.gradient_settings import Choice
from tests.strategies.gradient_toys import ToyOps, problem, settings

RECIPE: dict[str, Any] = {"kind": "driven"}


def drive(folder: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    how = settings(steps=300, marks=30, choice=Choice(samples=4, recalibrate=1), remove_below=0.05)
    return execute(lambda: how.job(problem(ToyOps(blocks=2))), folder, RECIPE)


if __name__ == "__main__":
    drive(Path(sys.argv[1]))

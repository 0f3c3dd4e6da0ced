"""A search in a run directory, as a program: `python -m tests.strategies.driven FOLDER`, to be killed by a test."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from segtailor.runs import execute
from segtailor.strategies import Evolution, Processes, RandomSearch
from tests.strategies.planted import problem

RECIPE: dict[str, Any] = {"kind": "driven"}


def drive(folder: Path, *, sleep: float = 0.0) -> dict[str, Any]:
    asked = problem(work="slow", sleep=sleep, noise=0.05)
    return execute(lambda: Evolution(trials=24, population=6).job(asked), folder, RECIPE)


def drive_slowly() -> None:
    """Work on trials that take a minute, in two processes; say when they have started."""
    asked = problem(executor=Processes(), work="slow", sleep=60.0)
    for _ in RandomSearch(trials=4).job(asked).steps():
        print("running", flush=True)


if __name__ == "__main__":
    drive(Path(sys.argv[1]), sleep=float(sys.argv[2]))

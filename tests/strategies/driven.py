"""Searches in run directories, as a program that tests can kill: `python -m tests.strategies.driven KIND FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from segtailor.runs import Policy, execute
from segtailor.strategies import Evolution, Processes, RandomSearch
from segtailor.strategies.gradient_settings import Choice
from tests.strategies import cosearch_toys, gradient_toys, planted

RECIPE: dict[str, Any] = {"kind": "driven"}
EVERY_STEP = Policy(every_steps=1, tensorboard=False)


def drive_trials(folder: Path, *, sleep: float = 0.0) -> dict[str, Any]:
    asked = planted.problem(work=planted.slow, sleep=sleep, noise=0.05)
    return execute(lambda: Evolution(trials=24, population=6).job(asked), folder, RECIPE)


def drive_gradient(folder: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    how = gradient_toys.settings(
        steps=300, marks=30, choice=Choice(samples=4, recalibrate=1), remove_below=0.05
    )
    asked = gradient_toys.problem(gradient_toys.ToyOps(blocks=2))
    return execute(lambda: how.job(asked), folder, RECIPE)


def drive_cosearch(folder: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    how = cosearch_toys.settings(steps=6, ahead=4, judge_every=3)
    return execute(lambda: how.job(cosearch_toys.problem(seed=3)), folder, RECIPE, policy=EVERY_STEP)


def drive_slowly() -> None:
    """Work on trials that take a minute, in two processes; say when they have started."""
    asked = planted.problem(executor=Processes(), work=planted.slow, sleep=60.0)
    for _ in RandomSearch(trials=4).job(asked).steps():
        print("running", flush=True)


if __name__ == "__main__":
    kind, place = sys.argv[1], Path(sys.argv[2])
    if kind == "trials":
        drive_trials(place, sleep=0.2)
    else:
        {"gradient": drive_gradient, "cosearch": drive_cosearch}[kind](place)

"""Measure the slowdown by other programs: training and search steps on a busy and on a quiet machine.

    python -m benchmarks.busy_machine --busy 1              # one other process of low priority
    python -m benchmarks.busy_machine --busy 2 --nice 0     # two of the same priority

Every row is measured on the quiet and on the busy machine in one run, once with torch's default number of threads and
once with threads chosen by `training.threads`. No other program must run, or the quiet figures are wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

DATA = "synthetic:size=128x256,train=24,val=4,seed=0"
WARM_UP_STEPS, MAX_SECONDS, MAX_STEPS = 2, 15.0, 400
WORK = ("train lpsnet-s", "search fasterseg", "search squeezenas")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--busy", type=int, default=1, help="number of other processes")
    parser.add_argument("--nice", type=int, default=10, help="their priority: 10 is low, 0 normal")
    parser.add_argument("--one", nargs=2, metavar=("WORK", "THREADS"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(step_seconds(*chosen.one)))
        return
    print(
        f"| work | threads | quiet, ms per step | with {chosen.busy} others, ms per step | ratio |\n"
        + "|---" * 5
        + "|"
    )
    for work in WORK:
        for threads in ("fixed", "chosen"):
            quiet = measured(work, threads)
            with others(chosen.busy, chosen.nice):
                busy = measured(work, threads)
            row = f"| {work} | {threads} | {1000 * quiet:.1f} | {1000 * busy:.1f} | {busy / quiet:.2f} |"
            print(row, flush=True)


def measured(work: str, threads: str) -> float:
    """Return the seconds per step, measured in a new process: how threads wait must be set before torch is imported."""
    environment = dict(os.environ)
    if threads == "chosen":
        environment["GOMP_SPINCOUNT"] = "10000"  # as the command line sets it
    command = [sys.executable, __file__, "--one", work, threads]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


@contextmanager
def others(count: int, nice: int) -> Iterator[None]:
    """Keep cores busy with processes of a priority."""
    busy = [
        subprocess.Popen(["nice", "-n", str(nice), sys.executable, "-c", "while True: pass"])
        for _ in range(count)
    ]
    try:
        time.sleep(1.0)
        yield
    finally:
        for one in busy:
            one.kill()
            one.wait()


def step_seconds(work: str, threads: str) -> float:
    """Return the mean seconds per step of a training or search."""
    from segtailor.recipes.recipe import with_settings
    from segtailor.recipes.train import train_recipe
    from segtailor.runs import Context
    from segtailor.verbs.search import search_recipe

    verb, name = work.split()
    fixed = str(threads == "fixed").lower()
    with TemporaryDirectory() as folder:
        context = Context(folder=Path(folder), cache=Path(folder), device="cpu")
        if verb == "train":
            changes = ["fit.steps=100000", "fit.batch=4", f"fit.deterministic={fixed}"]
            recipe: Any = with_settings(train_recipe(name, DATA, crop=(64, 128), context=context), changes)
        else:
            changes = [f"strategy.fit.deterministic={fixed}"]
            recipe = search_recipe(name, DATA, changes=changes, context=context)
        job = recipe.job(context)
        begin, first = 0.0, 0
        for step in job.steps():
            if step.phase.startswith("choose"):
                break
            if not begin and step.done >= WARM_UP_STEPS:
                begin, first = time.perf_counter(), step.done
            elif begin and (time.perf_counter() - begin > MAX_SECONDS or step.done - first >= MAX_STEPS):
                break
        return (time.perf_counter() - begin) / (step.done - first)


if __name__ == "__main__":
    main()
